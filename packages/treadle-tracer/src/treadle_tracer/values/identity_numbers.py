"""`id(obj)` of an object that the trace has made: a number that is not known, but is that of no other object.

seen = {id(node)}
if id(child) not in seen:      # False for every other object, as long as both are there
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class IdentityNumber(Value):
    """The address of `target`. It can be a key and be compared with others of its kind; whatever else is asked breaks the graph."""

    __slots__ = ("target",)

    def __init__(self, target: Value):
        self.source = None
        self.target = target

    @classmethod
    def of(cls, tx: TraceContext, target: Value) -> IdentityNumber:
        """The one number of an object."""
        key = ~id(target)  # no id of an object
        if key not in tx.wrapped:
            tx.wrapped[key] = (target, cls(target))
        found = tx.wrapped[key][1]
        assert isinstance(found, cls)
        return found

    def python_type(self) -> type:
        return int

    def describe(self) -> str:
        return self.target.describe()

    def truth(self, tx: TraceContext) -> bool:
        return True

    def hash_key(self, tx: TraceContext) -> Any:
        return self

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the reason why the number itself is not known."""
        raise Unsupported("identity-number", self.target.describe())

    get_attr = as_index = builtin_method = call_method = reconstruct = refuse
