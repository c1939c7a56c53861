"""Context variables: reads are guarded, and what the program sets is in effect in the trace and set after the graph.

token = SCALE.set(2.0)
try:
    y = f(x)                 # SCALE.get() is 2.0 here
finally:
    SCALE.reset(token)       # as before: nothing is left to set

context = contextvars.copy_context()
context.run(g, x)            # what g sets stays in the context
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource
from treadle_tracer.values.base import NONE, Method
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_NOTHING = object()
_CONTENTS = "value"  # the name under which writes are recorded; replayed by `ContextVar.set`


def _contents(variable: Any) -> Any:
    return contextvars.ContextVar.get(variable, _NOTHING)


def _default(variable: Any) -> Any:
    return contextvars.Context().run(contextvars.ContextVar.get, variable)


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
        token = Token(self, tx.mutations.load_attr(self, _CONTENTS), tx.frames[0].at, tx.context)
        tx.mutations.store_attr(self, _CONTENTS, args[0])
        return token

    def reset(self, tx: TraceContext, args: list[Value]) -> Value:
        """`reset(token)`"""
        token = args[0]
        if not isinstance(token, Token) or token.variable is not self or token.is_used:
            raise Unsupported("builtin-method", f"ContextVar.reset of {token.describe()}")
        if token.context is not tx.context:
            raise Unsupported("raises", f"ContextVar.reset of {token.describe()} of another context")
        tx.mutations.begin_write()
        token.is_used = True
        self.hold(tx, token.before)
        return NONE

    def hold(self, tx: TraceContext, value: Value | None) -> None:
        """Have this value from here on; None: that of before the trace."""
        if value is not None:
            tx.mutations.store_attr(self, _CONTENTS, value)
        elif tx.mutations.load_attr(self, _CONTENTS) is not None:
            tx.mutations.forget_attr(self, _CONTENTS)


_METHODS = {"get": ContextVariable.read, "set": ContextVariable.set, "reset": ContextVariable.reset}


class Token(Value):
    """What `ContextVar.set` gives.

    before    what the trace had set before; None where it had set nothing
    made_at   the instruction of the root frame that made the token
    context   the context that the trace has entered and that it belongs to; None: that of the compiled function
    """

    __slots__ = ("before", "context", "is_used", "made_at", "variable")

    def __init__(self, variable: ContextVariable, before: Value | None, made_at: int, context: Value | None):
        self.source = None
        self.variable = variable
        self.before = before
        self.context = context
        self.is_used = False
        self.made_at = made_at

    def python_type(self) -> type:
        return contextvars.Token

    def truth(self, tx: TraceContext) -> bool:
        return True

    def reconstruct(self, cg: Any) -> None:
        text = "a token of a context variable, which only the call of `set` gives"
        raise Unsupported("reconstruct", text, (), self.made_at)


_HELD = "held"  # the name under which a context's contents are recorded, so that a path that was only tried leaves none


class ContextValue(Value):
    """What `contextvars.copy_context` gives: the context at entry, and what the trace has set in it since."""

    __slots__ = ()

    def __init__(self) -> None:
        self.source = None

    def python_type(self) -> type:
        return contextvars.Context

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name != "run":
            raise Unsupported("builtin-method", f"Context.{name}")
        return Method(self, name, contextvars.Context.run)

    def truth(self, tx: TraceContext) -> bool:
        raise Unsupported("builtin-method", "Context.__len__")

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name != "run" or not args:
            raise Unsupported("builtin-method", f"Context.{name}")
        if self._is_entered(tx):
            raise Unsupported("raises", "a context is entered that has been entered already")
        around, outer = tx.context, _held_now(tx)
        _hold(tx, self._held(tx.mutations))
        tx.context = self
        try:
            return args[0].call(tx, args[1:], kwargs)
        finally:
            tx.context = around
            tx.mutations.store_attr(self, _HELD, _Held(_held_now(tx)))
            _hold(tx, outer)

    def _is_entered(self, tx: TraceContext) -> bool:
        return tx.context is not None  # one inside another is not followed

    def _held(self, mutations: Any) -> dict[ContextVariable, Value]:
        stored = mutations.load_attr(self, _HELD)
        return {} if stored is None else stored.values

    def reconstruct(self, cg: Any) -> None:
        pairs = [TupleValue([variable, value]) for variable, value in self._held(cg.mutations).items()]
        cg.call_const(_made_context, TupleValue(pairs))


class _Held(Value):
    """The contents of a context: values by variable."""

    __slots__ = ("values",)

    def __init__(self, values: dict[ContextVariable, Value]):
        self.source = None
        self.values = values


def _held_now(tx: TraceContext) -> dict[ContextVariable, Value]:
    """The variables that the trace has set, with what they hold."""
    stores = tx.mutations.attr_stores()
    return {owner: value for owner, _, value in stores if isinstance(owner, ContextVariable)}


def _hold(tx: TraceContext, values: dict[ContextVariable, Value]) -> None:
    """Have all variables hold these values; others what they held before the trace."""
    for variable in {**_held_now(tx), **values}:
        variable.hold(tx, values.get(variable))


def _made_context(pairs: Any) -> contextvars.Context:
    """Run-time helper. It runs before the variables are set that the program has set itself."""
    made = contextvars.copy_context()
    for variable, value in pairs:
        made.run(variable.set, value)
    return made


def copy_context(tx: TraceContext) -> ContextValue:
    """`contextvars.copy_context()`"""
    made = ContextValue()
    tx.mutations.store_attr(made, _HELD, _Held(_held_now(tx)))
    return made


def wrap_context_variable(tx: TraceContext, obj: contextvars.ContextVar[Any], source: Source) -> Value:
    """The Value of an outside context variable."""
    tx.guards.add(source, "type_is", type(obj))
    return ContextVariable(type(obj), obj, source)
