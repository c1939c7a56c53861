"""Tracebacks of exceptions that the trace handles. Python makes them while it runs: the trace knows only that there is one."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NoReturn

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_REASON = "a traceback, which is known only at run time"


class RunTimeTraceback(Value):
    """`sys.exc_info()[2]` in a handler. `made_at` is the instruction of the root frame that asked for it."""

    __slots__ = ("made_at",)

    def __init__(self, made_at: int):
        self.source = None
        self.made_at = made_at

    def python_type(self) -> type:
        return types.TracebackType

    def truth(self, tx: TraceContext) -> bool:
        return True

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise Unsupported: what the program asks for is not known."""
        raise Unsupported("builtin-call", _REASON)

    get_attr = set_attr = call_method = builtin_method = hash_key = refuse

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", _REASON, (), self.made_at)
