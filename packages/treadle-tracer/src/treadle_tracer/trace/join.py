"""The join of two states: one value for what two paths from an undecided jump have computed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle_shapes.expr import And, Eq, Not, Or
from treadle_shapes.torch import raw_expr
from treadle_tracer.trace.elements import Elements
from treadle_tracer.trace.speculatable import is_speculatable
from treadle_tracer.values.base import ConcreteValue, Constant, settled
from treadle_tracer.values.deferred_text import SymbolicText
from treadle_tracer.values.joined import JoinedTensor, SymbolicBool, symbolic_bool
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.trace.tracer import Tracer

_BY_VALUE = (type(None), bool, int, str, bytes)


class Join:
    """Two states at one instruction. On the taken path `taken` holds, which is true for the current sizes; on the other path its negation
    `other` holds. `assumed` holds on both."""

    def __init__(self, tx: Tracer, assumed: Sequence[Any], taken: Any, other: Any):
        self.tx = tx
        self.taken = taken
        self._on_taken = (*assumed, taken)
        self._on_other = (*assumed, other)
        self._tensors: dict[tuple[int, int], JoinedTensor] = {}
        self._origins: dict[fx.Node, fx.Node] = {}

    def value(self, one: Value, two: Value) -> Value | None:
        """The value that stands for `one` on the taken path and for `two` on the other, or None."""
        if is_same(one, two):
            return one
        if isinstance(settled(one), SymbolicText) or isinstance(settled(two), SymbolicText):
            return None
        for join in (self._tuple, self._bool, self._integer, self._tensor):
            found = join(one, two)
            if found is not None:
                return found
        return None

    def allows(self, nodes: Sequence[fx.Node]) -> bool:
        """Whether the graph may compute on the other path what the taken path has computed.

        It may if some size is 1 there: `output.size_one` finds out whether the graph is right at such sizes.
        """
        return self._has_size_one or not any(is_speculatable(node.target) for node in nodes)

    def commit(self) -> None:
        """The trace continues with the values made here. `output.size_one` reads the tensor of the other path from the nodes."""
        for tensor in self._tensors.values():
            self.tx.adopt(tensor)
        for node, other in self._origins.items():
            node.meta["joined"] = (self.taken, other)

    @functools.cached_property
    def _has_size_one(self) -> bool:
        """Whether some size of an input is 1 on the other path."""
        sizes = [s for s in getattr(self.taken, "free_symbols", ()) if s in self.tx.symbols.sources]
        return any(self.tx.symbols.env.prove_under(self._on_other, Eq(s, 1)) for s in sizes)

    def _tuple(self, one: Value, two: Value) -> Value | None:
        """Tuples made on both paths, item by item."""
        if not isinstance(one, TupleValue) or not isinstance(two, TupleValue) or one.source or two.source:
            return None
        if one.cls is not two.cls or len(one.items) != len(two.items):
            return None
        items = [self.value(a, b) for a, b in zip(one.items, two.items, strict=True)]
        return None if any(item is None for item in items) else TupleValue(items, one.cls)

    def _bool(self, one: Value, two: Value) -> Value | None:
        """A bool that is one truth on the taken path and another on the other: a condition, which must have a hint."""
        if not _is_bool(one) or not _is_bool(two):
            return None
        here, there = self._truth(one, self._on_taken), self._truth(two, self._on_other)
        found = symbolic_bool(self.tx, Or(And(self.taken, here), And(Not(self.taken), there)))
        is_open = isinstance(found, SymbolicBool) and self.tx.symbols.env.hint(found.condition) is None
        return None if is_open else found

    def _truth(self, value: Value, assumptions: Sequence[Any]) -> Any:
        if not isinstance(value, SymbolicBool):
            return value.constant()
        known = self.tx.symbols.env.prove_under(assumptions, value.condition)
        return value.condition if known is None else known

    def _integer(self, one: Value, two: Value) -> Value | None:
        """The int of one path where it equals that of the other path."""
        here, there = _integer_of(one), _integer_of(two)
        if here is None or there is None:
            return None
        equal, env = Eq(here, there), self.tx.symbols.env
        if env.prove_under(self._on_other, equal):
            return one
        return two if env.prove_under(self._on_taken, equal) else None

    def _tensor(self, one: Value, two: Value) -> Value | None:
        """A tensor that the taken path has computed, where the tensor of the other path has the same elements."""
        if not isinstance(one, TensorValue) or isinstance(one, JoinedTensor) or not isinstance(two, TensorValue):
            return None
        node, other = one.known_node, two.known_node
        if node is None or other is None or not is_speculatable(node.target) or not self._has_size_one:
            return None
        if self._origins.get(node, other) is not other or "joined" in node.meta:
            return None
        found = self._tensors.get((id(one), id(two)))
        if found is None:
            origin = Elements(self.tx.symbols.env, self._on_other).origin(node)
            if origin is not other or one.fake.requires_grad != two.fake.requires_grad:
                return None
            found = JoinedTensor(node, one.fake, self.taken, self.tx.decide_condition)
            self._tensors[id(one), id(two)] = found
            self._origins[node] = other
        return found


# Values whose objects cannot be looked at without a guard.
_OPEN = (SymbolicBool, SymbolicText)


def is_same(one: Value, two: Value) -> bool:
    """Whether two values of one frame stand for the same object, or for equal objects that the program cannot tell apart."""
    one, two = settled(one), settled(two)
    if one is two:
        return True
    if isinstance(one, _OPEN) or isinstance(two, _OPEN):
        return False
    if isinstance(one, ConcreteValue) and isinstance(two, ConcreteValue):
        if one.obj is two.obj:
            return True
        return type(one.obj) is type(two.obj) and isinstance(one.obj, _BY_VALUE) and one.obj == two.obj
    if isinstance(one, SymbolicValue) and isinstance(two, SymbolicValue):
        return type(one.sym) is type(two.sym) and raw_expr(one.sym) is raw_expr(two.sym)
    return False


def _is_bool(value: Value) -> bool:
    return isinstance(value, SymbolicBool) or (isinstance(value, Constant) and type(value.obj) is bool)


def _integer_of(value: Value) -> Any:
    """The expression or number of an int, None for everything else."""
    if isinstance(value, SymbolicValue):
        return raw_expr(value.sym) if value.python_type() is int else None
    return (
        value.obj
        if isinstance(value, Constant) and not isinstance(value, SymbolicBool) and type(value.obj) is int
        else None
    )
