"""The table from ATen overloads to lowerings.

A lowering takes the `Lowering` in progress and the node's arguments, tensors as `TensorExpr`, sizes as ints or Exprs, and
returns a `TensorExpr`, a tuple of them, or None where it does not cover the case; the op then becomes an `Extern`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LoweringFn = Callable[..., Any]

LOWERINGS: dict[str, LoweringFn] = {}


def lowering(*names: str) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering for overloads named like "aten.add.Tensor"."""

    def register(fn: LoweringFn) -> LoweringFn:
        for name in names:
            if name in LOWERINGS:
                raise ValueError(f"{name} has two lowerings")
            LOWERINGS[name] = fn
        return fn

    return register
