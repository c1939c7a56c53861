"""What NumPy warns of: overflow, divisions by zero, invalid values.

It shows in results that are not finite although the operands are numbers. The graph asserts that there are none; where the assert fails,
Python runs the program, and NumPy warns, or raises where `np.seterr` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_shapes.expr import Not
from treadle_shapes.torch import Kind, operator, raw_expr
from treadle_tracer.errors import OtherPath, PathEnds, Unsupported
from treadle_tracer.values.arrays import in_graph, note_numpy_calls
from treadle_tracer.values.base import Constant
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.tensor_numbers import truth_value
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext


class Flag(NamedTuple):
    """Elements that are true where NumPy may warn: `strict` wherever `result` is not finite, `lenient` not where an operand is NaN."""

    result: fx.Node | None
    strict: TensorValue
    lenient: TensorValue


def _note(tx: TraceContext, flag: Flag) -> None:
    if tx.speculation is not None:
        raise PathEnds("an operation of NumPy that may warn")
    if not tx.symbols.guesses or not tx.symbols.takes_numbers:
        raise Unsupported("numpy", "an operation that may warn")
    tx.numpy_flags.append(flag)


def note_flag(tx: TraceContext, flag: TensorValue) -> None:
    """NumPy warns where an element of `flag` is true."""
    _note(tx, Flag(None, flag, flag))


def note_not_finite(tx: TraceContext, result: TensorValue, operands: Iterable[Value]) -> None:
    """NumPy may warn where a result is not finite although no operand is NaN."""
    strict = lenient = _check(tx, torch.logical_not, _check(tx, torch.isfinite, result))
    for given in operands:
        dtype = given.fake.dtype if isinstance(given, TensorValue) else torch.int64
        if dtype.is_floating_point or dtype.is_complex:
            is_number = _check(tx, torch.logical_not, _check(tx, torch.isnan, given))
            lenient = _check(tx, torch.logical_and, lenient, is_number)
    _note(tx, Flag(result.node(tx), strict, lenient))


def _check(tx: TraceContext, function: Callable[..., Any], *args: Any) -> TensorValue:
    """A call that looks for a reason to warn, which NumPy does on the side."""
    return note_numpy_calls(in_graph(tx, function, *args), 0)


def write_checks(tx: TraceContext) -> None:
    """At the end of the program: the graph asserts that NumPy has nothing to warn of."""
    flags, tx.numpy_flags = tx.numpy_flags, []
    if not flags:
        return
    by_shape: dict[Any, TensorValue] = {}
    for flag in _needed(flags):
        shape = tuple(str(size) for size in flag.fake.shape)
        by_shape[shape] = in_graph(tx, torch.logical_or, by_shape[shape], flag) if shape in by_shape else flag
    every = [in_graph(tx, torch.any, flag) if flag.fake.dim() else flag for flag in by_shape.values()]
    number = truth_value(tx, reduce(lambda a, b: in_graph(tx, torch.logical_or, a, b), every))
    assert number is not None
    if isinstance(number, Constant):
        if number.obj:
            raise Unsupported("numpy", "an operation that warns")
        return
    tx.symbols.unbacked.write_asserts(tx, complete=True)
    tx.symbols.unbacked.state(tx, Not(raw_expr(number.sym)), "NumPy warns of nothing", OtherPath)  # type: ignore[attr-defined]


def _needed(flags: list[Flag]) -> list[TensorValue]:
    """The flags to look at. What is not finite in one result shows in a later one that is computed from it by a sum or product."""
    checked = {flag.result for flag in flags if flag.result is not None}
    covered: set[fx.Node] = set()
    covering: set[fx.Node] = set()
    for node in checked:
        if all(map(_computes, node.users)):  # no view, and nothing written
            later = [user for user in node.users if user in checked and _shows_in(node, user)]
            if later:
                covered.add(node)
                covering.add(later[0])
    return [flag.strict if flag.result in covering else flag.lenient for flag in flags if flag.result not in covered]


def _computes(user: fx.Node) -> bool:
    """Whether a call computes a result in memory of its own and writes nothing."""
    known = operator(user.target)
    return known is not None and known.kind in _COMPUTING and not known.writes and not known.aliases


_COMPUTING = (Kind.POINTWISE, Kind.REDUCTION, Kind.MATMUL)


def _shows_in(node: fx.Node, user: fx.Node) -> bool:
    """Whether a result is not finite where an operand is not finite."""
    if user.target is torch.div:
        return user.args[0] is node and user.args[1] is not node and _has_elements(user)
    return user.target in _SPREADS and _has_elements(user)


def _has_elements(node: fx.Node) -> bool:
    return not any(isinstance(size, int) and size == 0 for size in node.meta["example_value"].shape)


_SPREADS = frozenset(
    {
        torch.add,
        torch.sub,
        torch.mul,
        torch.neg,
        torch.sqrt,
        torch.square,
        torch.abs,
        torch.sum,
        torch.log,
        torch.sin,
        torch.cos,
    }
)
