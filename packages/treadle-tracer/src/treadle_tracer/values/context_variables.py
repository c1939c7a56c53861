"""Context variables: reads are guarded, and what the program sets is in effect in the trace and set after the graph.

token = SCALE.set(2.0)
try:
    y = f(x)                 # SCALE.get() is 2.0 here
finally:
    SCALE.reset(token)       # as before: nothing is left to set
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource
from treadle_tracer.values.base import NONE
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_NOTHING = object()
_CONTENTS = "value"  # the name under which writes are recorded; replayed by `ContextVar.set`


def _contents(variable: Any) -> Any:
    return variable.get(_NOTHING)


def _default(variable: Any) -> Any:
    return contextvars.Context().run(variable.get)


class ContextVariable(ObjectValue):
    """A `contextvars.ContextVar` from outside."""

    __slots__ = ()

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = _METHODS.get(name)
        if handler is None or kwargs:
            return super().builtin_method(tx, name, args, kwargs)
        return handler(self, tx, args)

    def read(self, tx: TraceContext, args: list[Value]) -> Value:
        """`get()`, `get(default)`"""
        stored = tx.mutations.load_attr(self, _CONTENTS)
        if isinstance(stored, Value):
            return stored
        assert self.source is not None
        contents = ApplySource(self.source, _contents)
        found = _contents(self.obj)
        if found is not _NOTHING:
            return tx.wrap(found, contents)
        tx.guards.add(contents, "is", _NOTHING)
        if args:
            return args[0]
        try:
            default = _default(self.obj)
        except LookupError:
            return tx.raise_exception_value(LookupError, [self])
        return tx.wrap(default, ApplySource(self.source, _default))

    def set(self, tx: TraceContext, args: list[Value]) -> Value:
        """`set(value)`"""
        token = Token(self, tx.mutations.load_attr(self, _CONTENTS), tx.frames[0].at)
        tx.mutations.store_attr(self, _CONTENTS, args[0])
        return token

    def reset(self, tx: TraceContext, args: list[Value]) -> Value:
        """`reset(token)`"""
        token = args[0]
        if not isinstance(token, Token) or token.variable is not self or token.is_used:
            raise Unsupported("builtin-method", f"ContextVar.reset of {token.describe()}")
        tx.mutations.begin_write()
        token.is_used = True
        if token.before is not None:
            tx.mutations.store_attr(self, _CONTENTS, token.before)
        elif tx.mutations.load_attr(self, _CONTENTS) is not None:
            tx.mutations.forget_attr(self, _CONTENTS)
        return NONE


_METHODS = {"get": ContextVariable.read, "set": ContextVariable.set, "reset": ContextVariable.reset}


class Token(Value):
    """What `ContextVar.set` gives.

    before    what the trace had set before; None where it had set nothing
    made_at   the instruction of the root frame that made the token
    """

    __slots__ = ("before", "is_used", "made_at", "variable")

    def __init__(self, variable: ContextVariable, before: Value | None, made_at: int):
        self.source = None
        self.variable = variable
        self.before = before
        self.is_used = False
        self.made_at = made_at

    def python_type(self) -> type:
        return contextvars.Token

    def truth(self, tx: TraceContext) -> bool:
        return True

    def reconstruct(self, cg: Any) -> None:
        text = "a token of a context variable, which only the call of `set` gives"
        raise Unsupported("reconstruct", text, (), self.made_at)


def wrap_context_variable(tx: TraceContext, obj: contextvars.ContextVar[Any], source: Source) -> Value:
    """The Value of an outside context variable."""
    tx.guards.add(source, "type_is", type(obj))
    return ContextVariable(type(obj), obj, source)
