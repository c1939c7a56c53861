"""Ranges of dynamic numbers: how many items they have is a constant, which is guarded, and the items follow the numbers.

    for start in range(0, x.shape[0], 1024):      # from 1 to 1024 rows: one round, whatever the size
        total += f(x[start : start + 1024])

A loop is compiled once for each number of rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_shapes.torch import raw_expr
from treadle_tracer.values.base import Constant
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_MOST_ITEMS = 256
_PARTS = ("start", "stop", "step")


def new_range(tx: TraceContext, args: list[Value]) -> Value | None:
    """`range(*args)` that depends on dynamic numbers; None for every other."""
    if not 1 <= len(args) <= 3 or not any(isinstance(arg, SymbolicValue) for arg in args):
        return None
    if not all(_is_int(arg) for arg in args) or any(is_unbacked(tx, arg) for arg in args):
        return None
    start, stop, step = (Constant(0), args[0], Constant(1)) if len(args) == 1 else (*args, Constant(1))[:3]
    if not tx.compare(">", step, Constant(0)).truth(tx):
        return None  # backwards, or the error of a step of zero
    count = _count(tx, start, stop, step)
    if count > _MOST_ITEMS or all(_is_known(tx, arg) for arg in args):
        return None
    items = [start]
    while len(items) < count:
        items.append(tx.binary_op("+", items[-1], step))
    return SymbolicRange((start, stop, step), items[:count])


def _is_int(value: Value) -> bool:
    if isinstance(value, SymbolicValue):
        return value.python_type() is int
    return isinstance(value, Constant) and type(value.obj) is int


def _is_known(tx: TraceContext, value: Value) -> bool:
    """Whether a number is a constant, or has become one by a guard."""
    return not isinstance(value, SymbolicValue) or isinstance(tx.symbols.env.simplify(raw_expr(value.sym)), int)


def _count(tx: TraceContext, start: Value, stop: Value, step: Value) -> int:
    """How many items there are; a constant from here on."""
    if not tx.compare("<", start, stop).truth(tx):
        return 0
    last = tx.binary_op("-", tx.binary_op("-", stop, start), Constant(1))
    return 1 + tx.binary_op("//", last, step).as_index(tx)


class SymbolicRange(Value):
    """`range(*parts)`, with these items. What asks for more than the parts and items makes the parts constants."""

    __slots__ = ("items", "parts")

    def __init__(self, parts: tuple[Value, Value, Value], items: list[Value]):
        self.source = None
        self.parts = parts
        self.items = items

    def python_type(self) -> type:
        return range

    def fixed(self, tx: TraceContext) -> Value:
        """The range of constants."""
        return tx.fold(range, [Constant(part.as_index(tx)) for part in self.parts], {})

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        return self.parts[_PARTS.index(name)] if name in _PARTS else super().get_attr(tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.fixed(tx).call_method(tx, name, args, kwargs)

    def hash_key(self, tx: TraceContext) -> Any:
        return self.fixed(tx).hash_key(tx)

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        if isinstance(key, Constant) and type(key.obj) is int and -len(self.items) <= key.obj < len(self.items):
            return self.items[key.obj]
        return self.fixed(tx).get_item(tx, key)

    def iterate(self, tx: TraceContext) -> Value:
        return tx.list_iterator(list(self.items))

    def length(self, tx: TraceContext) -> int:
        return len(self.items)

    def truth(self, tx: TraceContext) -> bool:
        return bool(self.items)

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(range)
        for part in self.parts:
            cg.value(part)
        cg.cb.call(3)
