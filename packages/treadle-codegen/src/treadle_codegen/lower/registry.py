"""The table from ATen overloads to lowerings.

A lowering takes the `Lowering` in progress and the node's arguments, tensors as `TensorExpr`, sizes as ints or Exprs, and
returns a `TensorExpr`, a tuple of them, or None for a case that it does not cover; the call then becomes an `Extern`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from treadle_shapes.floats import FloatExpr

LoweringFn = Callable[..., Any]

LOWERINGS: dict[str, LoweringFn] = {}
COMPLEX_LOWERINGS: dict[str, LoweringFn] = {}  # where an argument or the result is complex; `lower.complex_numbers`
_TAKE_FLOATS: set[str] = set()


def lowering(*names: str, symbolic_floats: bool = False) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering for overloads named like "aten.add.Tensor".

    symbolic_floats: it takes a FloatExpr in place of a number, because its result depends on the number through arithmetic in
    the loop only. Without it, a call with such a float goes to ATen, which receives its value.
    """

    def register(fn: LoweringFn) -> LoweringFn:
        for name in names:
            if name in LOWERINGS:
                raise ValueError(f"{name} has two lowerings")
            LOWERINGS[name] = fn
            if symbolic_floats:
                _TAKE_FLOATS.add(name)
        return fn

    return register


@lru_cache(1 << 12)
def name_of(target: Any) -> str:
    """The name by which tables list an overload: "aten.add.Tensor". PyTorch would compose it anew every time."""
    return str(target)


def why_not_float(name: str, args: Any, kwargs: dict[str, Any]) -> str | None:
    """Why the lowering of `name` cannot take these arguments, which may hold floats known only at run time; None if it can."""
    if name not in _TAKE_FLOATS and (any(map(_holds_float, args)) or any(map(_holds_float, kwargs.values()))):
        return f"the lowering of {name} looks at the value of a float"
    return None


def _holds_float(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_float, value))
    return isinstance(value, FloatExpr)
