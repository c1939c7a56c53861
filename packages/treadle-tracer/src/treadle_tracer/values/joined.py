"""Values that postpone a decision about sizes until something depends on it: bools, and tensors that one branch has expanded.

A late decision is as good as an early one: sizes do not change during a call, and the trace follows the path of the current sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_shapes.expr import Ne, Not
from treadle_shapes.torch import raw_expr
from treadle_tracer.errors import InternalError
from treadle_tracer.values.aliases import guard_distinct
from treadle_tracer.values.base import Constant, boolean
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext

Decide = Callable[[Any], bool]


class SymbolicBool(Constant):
    """The truth of `condition`, an undecided condition on sizes with hints. Reading `obj` decides and so guards it.

    Code that knows only constants may treat it as one. A jump on it may turn out not to matter (`trace.speculation`).
    compared: the comparison of ints that it is the result of, and the two ints; None if it is not known as one.
    """

    __slots__ = ("_decide", "compared", "condition")

    def __init__(self, condition: Any, decide: Decide):
        self.source = None
        self.condition = condition
        self.compared: tuple[Callable[..., Any], Value, Value] | None = None
        self._decide = decide

    @property
    def obj(self) -> bool:  # type: ignore[override]
        return self._decide(self.condition)

    def python_type(self) -> type:
        return bool

    def describe(self) -> str:
        return f"dynamic bool {self.condition}"

    def negated(self) -> SymbolicBool:
        """`not self`, still undecided."""
        return SymbolicBool(Not(self.condition), self._decide)


def symbolic_bool(tx: TraceContext, condition: Any) -> Constant:
    """The bool of a condition of treadle_shapes on sizes with hints: a constant where the condition follows from facts."""
    known = tx.symbols.env.prove(condition)
    return SymbolicBool(condition, tx.decide_condition) if known is None else boolean(known)


def undecided_truth(tx: TraceContext, value: Value) -> SymbolicBool | None:
    """`bool(value)` of an undecided bool, or of a symbolic int with a hint. None for every other value, and where facts decide it."""
    if type(value) is TensorValue and not tx.modes.ask:
        value = tx.number_of_sizes(value) or value
    if isinstance(value, SymbolicBool):
        return value
    if not isinstance(value, SymbolicValue) or value.python_type() is not int:
        return None
    number = raw_expr(value.sym)
    if tx.symbols.env.hint(number) is None:
        return None
    found = symbolic_bool(tx, Ne(number, 0))
    return found if isinstance(found, SymbolicBool) else None


def is_same(tx: TraceContext, a: Value, b: Value) -> bool:
    """`a is b` of the traced program. That two outside objects are different is guarded; that they are one was when they were met."""
    if a is b:
        return True
    if (isinstance(a, SymbolicBool) and not _may_be_bool(b)) or (isinstance(b, SymbolicBool) and not _may_be_bool(a)):
        return False
    if a.identity() is b.identity():
        return True
    guard_distinct(tx, a, b)
    return False


def _may_be_bool(value: Value) -> bool:
    return isinstance(value, SymbolicBool) or (isinstance(value, Constant) and type(value.obj) is bool)


class JoinedTensor(TensorValue):
    """An expanded view of another tensor where `condition` holds, and the other tensor itself where it does not.

    The condition holds for the current sizes. Both tensors have the same sizes and the same elements. Which of the two it is shows in
    identity, in attributes of the object, and where it leaves the trace.
    """

    __slots__ = ("_decide", "condition")

    def __init__(self, node: fx.Node | None, fake: Any, condition: Any, decide: Decide):
        super().__init__(node, fake)
        self.condition = condition
        self._decide = decide

    def settle(self) -> None:
        """Decide which tensor it is: the expanded one."""
        if not self._decide(self.condition):
            raise InternalError("join", f"{self.condition} holds for the current sizes, yet was decided to be false")

    def identity(self) -> Any:
        self.settle()
        return self

    def hash_key(self, tx: TraceContext) -> Any:
        self.settle()
        return self

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in _OF_THE_OBJECT:
            self.settle()
        return super().get_attr(tx, name)

    def own_attr(self, tx: TraceContext, name: str) -> Value:
        self.settle()
        return super().own_attr(tx, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        self.settle()
        super().set_attr(tx, name, value)

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        self.settle()
        super().set_item(tx, key, value)

    def reconstruct(self, cg: Any) -> None:
        self.settle()
        super().reconstruct(cg)


_OF_THE_OBJECT = frozenset({"requires_grad", "is_leaf", "grad", "grad_fn", "data", "names", "__dict__", "__class__"})
