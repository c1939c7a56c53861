"""Outside objects of a kind that the trace does not know: a sparse tensor, a TorchScript module.

They may be passed on, stored and compared by identity. Whatever looks into one breaks the graph there, for the reason given.

    z = torch.sparse.mm(s, y + 1)       # the graph computes y + 1; the call is Python's
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source

OPAQUE_CODES = frozenset({"array-kind", "script-module", "tensor-kind"})
"""Reasons to refuse an object that say nothing but that its kind is not known."""


class OpaqueValue(Value):
    """`obj`, found at `source`, of which only the type is known."""

    __slots__ = ("code", "context", "obj")

    def __init__(self, obj: Any, source: Source, reason: Unsupported):
        self.source = source
        self.obj = obj
        self.code, self.context = reason.code, reason.context

    def python_type(self) -> type:
        return type(self.obj)

    def identity(self) -> Any:
        return self

    def is_constant(self) -> bool:
        return False

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise the reason for which nothing is known of the object."""
        raise Unsupported(self.code, self.context)

    constant = hash_key = as_dict = get_attr = set_attr = del_attr = call = call_method = builtin_method = refuse
    get_item = set_item = del_item = iterate = next = truth = length = length_value = as_index = unpack = contains = (
        refuse
    )
