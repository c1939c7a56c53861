"""All lowerings: importing this module fills the registry."""

from __future__ import annotations

from treadle_codegen.lower import cat, create, gather, normalize, pointwise, pointwise_int, pool, reduce, view
from treadle_codegen.lower.registry import LOWERINGS

MODULES = (cat, create, gather, normalize, pointwise, pointwise_int, pool, reduce, view)

__all__ = ["LOWERINGS", "MODULES"]
