"""All lowerings: importing this module fills the registry."""

from __future__ import annotations

from treadle_codegen.lower import (
    activation,
    cat,
    create,
    gather,
    normalize,
    pointwise,
    pointwise_int,
    pool,
    reduce,
    view,
)
from treadle_codegen.lower.registry import LOWERINGS

MODULES = (activation, cat, create, gather, normalize, pointwise, pointwise_int, pool, reduce, view)

__all__ = ["LOWERINGS", "MODULES"]
