"""Decompositions: which ATen operators the recorder replaces by others, and by which function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from treadle_shapes.torch import operator

Decompositions: TypeAlias = Mapping[torch._ops.OpOverload, Callable[..., Any]]

_COMPOSITE = "CompositeImplicitAutograd"


def decompose_composite(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """``func.decompose`` for operators that are defined by other operators, else None.

    Such operators usually decompose above the recorder. They reach it when a decomposition calls them from inside the dispatch.
    """
    record = operator(func)
    if record is not None:
        return func.decompose if record.is_composite else None
    return func.decompose if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE) else None
