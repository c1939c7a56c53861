"""All lowerings: importing this module fills the registry."""

from __future__ import annotations

from treadle_codegen.lower import (
    activation,
    cat,
    create,
    gather,
    normalize,
    overwrite,
    pointwise,
    pointwise_int,
    pool,
    reduce,
    upsample,
    view,
)
from treadle_codegen.lower.registry import LOWERINGS

MODULES = (
    activation,
    cat,
    create,
    gather,
    normalize,
    overwrite,
    pointwise,
    pointwise_int,
    pool,
    reduce,
    upsample,
    view,
)

__all__ = ["LOWERINGS", "MODULES"]
