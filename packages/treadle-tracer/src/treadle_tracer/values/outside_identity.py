"""The numbers that `id(obj)` gives. That of an outside object matters only where it meets numbers that are kept from an earlier call.

The hash key is the real address, so that dicts from outside whose keys are addresses are asked as in Python; what is asked of them guards
which object it is. Among the trace's own keys such numbers are different as long as the objects are. An int of the program that may be an
address makes constants of all of them (`TraceContext.hashes_addresses`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import ConcreteValue, Constant
from treadle_tracer.values.identity import is_identical
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class IdentityNumber(Value):
    """The address of `target`, which is not known. It can be a key and be compared with others of its kind."""

    __slots__ = ("target",)

    def __init__(self, target: Value):
        self.source = None
        self.target = target

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return self.target.describe()

    def truth(self, tx: TraceContext) -> bool:
        return True

    @property
    def is_of_constant(self) -> bool:
        """Whether the object may have been there before the call, so that the program may have kept its address."""
        return isinstance(self.target, ConcreteValue)

    def settle(self) -> NoReturn:
        """Raise Unsupported: the number matters."""
        self.refuse()

    def hash_key(self, tx: TraceContext) -> Any:
        if not isinstance(self.target, ConcreteValue):
            return self
        tx.hashed_numbers.append(self)
        return _IdentityOfConstant(tx, self.target)

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(id, self.target)

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the reason why the number itself is not known."""
        raise Unsupported("identity-number", self.target.describe())

    get_attr = as_index = builtin_method = call_method = refuse


class _IdentityOfConstant:
    """The key of the address of a constant that has equals. Constants that are not equal are different objects."""

    __slots__ = ("_target", "_tx")

    def __init__(self, tx: TraceContext, target: ConcreteValue):
        self._tx, self._target = tx, target

    def __hash__(self) -> int:
        return hash((type(self._target.obj), self._target.hash_key(self._tx)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityOfConstant) and _is_one_object(self._tx, self._target, other._target)


def _is_one_object(tx: TraceContext, a: ConcreteValue, b: ConcreteValue) -> bool:
    """Whether two constants are one object. Of equal ones from outside it is guarded; Unsupported is raised of others."""
    if a.source is None or b.source is None or a.source == b.source or type(a.obj) is not type(b.obj):
        return is_identical(tx, a, b)
    if a.obj is b.obj:
        tx.guards.add(a.source, "same_object", b.source)
        return True
    tx.guards.add(a.source, "distinct_objects", (b.source,))
    return False


class KnownIdentityNumber(Constant):
    """The address of an object that is guarded by identity, or of which there is only one."""

    __slots__ = ("target",)

    def __init__(self, target: Value, obj: Any):
        super().__init__(id(obj))
        self.target = target

    def hash_key(self, tx: TraceContext) -> Any:
        return self.obj


class OutsideIdentityNumber(Constant):
    """The address of an outside object. Reading `obj` guards which object it is."""

    __slots__ = ("_guards", "real", "target")
    is_computed = True

    def __init__(self, tx: TraceContext, target: Value, real: Any):
        self.source = None
        self._guards = tx.guards
        self.target = target
        self.real = real

    @property
    def obj(self) -> int:  # type: ignore[override]
        assert self.target.source is not None
        self._guards.add(self.target.source, "is", self.real)
        return id(self.real)

    def settle(self) -> None:
        """Guard which object it is: the number matters."""
        assert self.obj

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return f"id({self.target.describe()})"

    def identity(self) -> Any:
        return self

    def truth(self, tx: TraceContext) -> bool:
        return True

    def hash_key(self, tx: TraceContext) -> Any:
        tx.hashed[id(self.real)] = self.target
        tx.hashed_numbers.append(self)
        return id(self.real)

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(id, self.target)


def settle_address(key: Value) -> None:
    """Before a key is looked up among those that the program has kept: of an object that may have been there before, the number matters."""
    if isinstance(key, OutsideIdentityNumber) or (isinstance(key, IdentityNumber) and key.is_of_constant):
        key.settle()
