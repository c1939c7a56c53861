"""Assumptions about unbacked sizes, made where an operator would silently do something else if they did not hold.

The graph checks each assumption. Where one does not hold, Python runs the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes import UnbackedError
from treadle_shapes.torch import raw_expr
from treadle_tracer.errors import PathEnds
from treadle_tracer.values.sequences import Sequence
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.unbacked import refusal, state_truth
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def squeezed(tx: TraceContext, owner: Value | None, dims: list[Value]) -> None:
    """Assume before `owner.squeeze(*dims)` that the sizes concerned are not 1."""
    if not isinstance(owner, TensorValue):
        return
    shape = owner.fake.shape
    chosen = [d for dim in dims for d in (dim.items if isinstance(dim, Sequence) else [dim])]
    for place in [dim.constant() for dim in chosen] if dims else range(len(shape)):
        if isinstance(place, int) and -len(shape) <= place < len(shape):
            _assume_not(tx, shape[place], 1)


def assume_some(tx: TraceContext, size: Any) -> None:
    """Assume that the size is not 0."""
    _assume_not(tx, size, 0)


def _assume_not(tx: TraceContext, size: Any, than: int) -> None:
    from treadle_shapes.expr import Ne

    env = tx.symbols.env
    if not isinstance(size, torch.SymInt) or not env.is_unbacked(raw_expr(size)):
        return
    condition = Ne(raw_expr(size), than)
    if env.prove(condition) is not None:
        return
    if not tx.symbols.assumes:
        raise refusal(tx, UnbackedError("", condition))
    if tx.speculation is not None:
        raise PathEnds("an assumption about unbacked numbers")
    env.assume(condition)
    tx.symbols.unbacked.write_asserts(tx, complete=True)


def state_positive(tx: TraceContext, size: Any) -> None:
    """Have the graph check that a size is at least 1. Eager raises a RuntimeError where it is not."""
    from treadle_shapes.expr import Ge

    if isinstance(size, torch.SymInt) and tx.symbols.env.is_unbacked(raw_expr(size)):
        state_truth(tx, Ge(raw_expr(size), 1), RuntimeError)
