"""Which ATen operators are taken apart before the graph is handed to a compiler, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

Decompositions: TypeAlias = Mapping[torch._ops.OpOverload, Callable[..., Any]]

_COMPOSITE = "CompositeImplicitAutograd"


def decompose_composite(func: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """``func.decompose`` for operators defined only by other operators, else ``None``.

    Such operators normally decompose above the recorder; they reach it when a decomposition calls them from inside dispatch.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE):
        return func.decompose
    return None
