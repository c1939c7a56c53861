"""All lowerings: importing this module fills the registry."""

from __future__ import annotations

from treadle_codegen.lower import (
    activation,
    attention,
    batch_norm,
    cat,
    complex_numbers,
    create,
    gather,
    normalize,
    overwrite,
    pointwise,
    pointwise_int,
    pool,
    reduce,
    scan,
    scatter,
    upsample,
    vector_product,
    view,
    windows,
)
from treadle_codegen.lower.registry import LOWERINGS

MODULES = (
    activation,
    attention,
    batch_norm,
    cat,
    complex_numbers,
    create,
    gather,
    normalize,
    overwrite,
    pointwise,
    pointwise_int,
    pool,
    reduce,
    scan,
    scatter,
    upsample,
    vector_product,
    view,
    windows,
)

__all__ = ["LOWERINGS", "MODULES"]
