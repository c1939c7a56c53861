"""Decompositions: which ATen operators the recorder replaces by others, and by which function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

Decompositions: TypeAlias = Mapping[torch._ops.OpOverload, Callable[..., Any]]

_COMPOSITE = "CompositeImplicitAutograd"


def decompose_composite(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """``func.decompose`` for operators that are defined by other operators, else None.

    Such operators usually decompose above the recorder. They reach it when a decomposition calls them from inside the dispatch.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE):
        return func.decompose
    return None
