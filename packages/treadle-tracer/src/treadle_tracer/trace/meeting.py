"""One value for two ways through a jump that has not been decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle_tracer.values.base import Constant, Known, Lazy, Value
from treadle_tracer.values.merged import MergedTensor, Undecided, undecided
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.trace.tracer import Tracer

EXPANSIONS = ("expand", "expand_as")
_BY_VALUE = (type(None), bool, int, str, bytes)


class Meeting:
    """Two states at one instruction: on the one way `taken` holds, which is true for the sizes at hand, on the other one `other`, its
    negation; `supposed` holds on both."""

    def __init__(self, tx: Tracer, supposed: Sequence[Any], taken: Any, other: Any):
        self.tx = tx
        self.taken = taken
        self._on_taken = (*supposed, taken)
        self._on_other = (*supposed, other)
        self._tensors: dict[tuple[int, int], MergedTensor] = {}

    def value(self, one: Value, two: Value) -> Value | None:
        """What stands for `one` on the taken way and for `two` on the other one; None if nothing does."""
        if is_same(one, two):
            return one
        for merge in (self._tuple, self._bool, self._integer, self._tensor):
            found = merge(one, two)
            if found is not None:
                return found
        return None

    def accounts_for(self, nodes: Sequence[fx.Node]) -> bool:
        """Whether every expansion among the nodes has gone into a merged tensor, and so is right on both ways."""
        merged = {tensor.known_node for tensor in self._tensors.values()}
        return all(node.target not in EXPANSIONS or node in merged for node in nodes)

    def _tuple(self, one: Value, two: Value) -> Value | None:
        """Tuples made on both ways, item by item."""
        if not isinstance(one, TupleValue) or not isinstance(two, TupleValue) or one.source or two.source:
            return None
        if one.cls is not two.cls or len(one.items) != len(two.items):
            return None
        items = [self.value(a, b) for a, b in zip(one.items, two.items, strict=True)]
        return None if any(item is None for item in items) else TupleValue(items, one.cls)

    def _bool(self, one: Value, two: Value) -> Value | None:
        """True here, False there: the condition itself."""
        from treadle_shapes.logic import And, Not, Or

        if not _is_bool(one) or not _is_bool(two):
            return None
        here, there = self._truth(one, self._on_taken), self._truth(two, self._on_other)
        return undecided(self.tx, Or(And(self.taken, here), And(Not(self.taken), there)))

    def _truth(self, value: Value, suppositions: Sequence[Any]) -> Any:
        if not isinstance(value, Undecided):
            return value.constant()
        known = self.tx.symbols.env.prove_if(suppositions, value.condition)
        return value.condition if known is None else known

    def _integer(self, one: Value, two: Value) -> Value | None:
        """A dynamic int, where the other way has the number that it is there."""
        from treadle_shapes.logic import Eq

        here, there = _integer_of(one), _integer_of(two)
        if here is None or there is None:
            return None
        equal, env = Eq(here, there), self.tx.symbols.env
        if isinstance(one, SymbolicValue) and env.prove_if(self._on_other, equal):
            return one
        if isinstance(two, SymbolicValue) and env.prove_if(self._on_taken, equal):
            return two
        return None

    def _tensor(self, one: Value, two: Value) -> Value | None:
        """x.expand(sizes), where the other way has x and the sizes are those of x there."""
        if not isinstance(one, TensorValue) or isinstance(one, MergedTensor) or not isinstance(two, TensorValue):
            return None
        node = one.known_node
        if node is None or node.target not in EXPANSIONS or node.args[0] is not two.known_node:
            return None
        if len(one.fake.shape) != len(two.fake.shape):
            return None
        sizes = zip(one.fake.shape, two.fake.shape, strict=True)
        if not all(self._is_same_size(expanded, size) for expanded, size in sizes):
            return None
        found = self._tensors.get((id(one), id(two)))
        if found is None:
            found = MergedTensor(node, one.fake, self.taken, self.tx.decide_condition)
            self._tensors[id(one), id(two)] = found
            self.tx.adopt(found)
        return found

    def _is_same_size(self, expanded: Any, size: Any) -> bool:
        """The same always, or 1 expanded to a size of an input that is 1 on the other way: what a size of 1 does to layouts and
        aliases, `output.ones` looks at."""
        from treadle_shapes.logic import Eq
        from treadle_shapes.torch import expr_of

        env, symbols = self.tx.symbols.env, self.tx.symbols
        a, b = expr_of(expanded), expr_of(size)
        if env.prove(Eq(a, b)):
            return True
        return b == 1 and a in symbols.sources and env.prove_if(self._on_other, Eq(a, 1)) is True


def is_same(one: Value, two: Value) -> bool:
    """Whether two values of one frame stand for the same object, or for equal ones that nothing can tell apart."""
    one = one.value if isinstance(one, Lazy) and one.value is not None else one
    two = two.value if isinstance(two, Lazy) and two.value is not None else two
    if one is two:
        return True
    if isinstance(one, Undecided) or isinstance(two, Undecided):
        return False
    if isinstance(one, Known) and isinstance(two, Known):
        if one.obj is two.obj:
            return True
        return type(one.obj) is type(two.obj) and isinstance(one.obj, _BY_VALUE) and one.obj == two.obj
    if isinstance(one, SymbolicValue) and isinstance(two, SymbolicValue):
        return type(one.sym) is type(two.sym) and one.sym.node.value is two.sym.node.value
    return False


def _is_bool(value: Value) -> bool:
    return isinstance(value, Undecided) or (isinstance(value, Constant) and type(value.obj) is bool)


def _integer_of(value: Value) -> Any:
    """The expression or number of an int, None for everything else."""
    if isinstance(value, SymbolicValue):
        return value.sym.node.value if value.python_type() is int else None
    return (
        value.obj
        if isinstance(value, Constant) and not isinstance(value, Undecided) and type(value.obj) is int
        else None
    )
