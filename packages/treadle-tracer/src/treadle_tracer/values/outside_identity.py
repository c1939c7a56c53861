"""`id(obj)` of an outside object, which matters only where it is compared with numbers that are kept from an earlier call.

The hash key is the real address, so that dicts from outside whose keys are addresses are asked as in Python; what is asked of them guards
which object it is. Among the trace's own keys such numbers are different as long as the objects are. An int of the program that may be an
address makes constants of all of them (`TraceContext.hashes_addresses`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_tracer.values.base import Constant
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


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
