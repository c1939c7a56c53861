"""Rules that users register for functions of their own: what a call of one does in a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from treadle_tracer.by_identity import IdentityDict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.constants import is_constant_object
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule, in_graph
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import NotConstant, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

F = TypeVar("F", bound=Callable[..., Any])
REGISTERED: IdentityDict[Any, Rule] = IdentityDict()
"""Rule by function."""


def allow_in_graph(function: F) -> F:
    """Put calls of `function` into the graph as they are: it is not traced, and runs when the graph runs.

    It must take and give tensors, numbers and containers of them, be free of side effects, and run on fake tensors. Raises TypeError for
    something that is not callable.
    """
    REGISTERED[_callable(function)] = in_graph(function)
    return function


def substitute_in_graph(original: Callable[..., Any]) -> Callable[[F], F]:
    """Trace the decorated function in place of `original`, which the trace cannot look into. Raises TypeError for what is not callable."""
    _callable(original)

    def decorate(traceable: F) -> F:
        _callable(traceable)

        def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
            return tx.wrap_known(traceable).call(tx, args, kwargs)

        REGISTERED[original] = Rule(original, apply)
        return traceable

    return decorate


def assume_constant_result(function: F) -> F:
    """Call `function` once, while tracing, and take its result for a constant of the graph.

    Its arguments must be constants or outside objects; other calls break the graph. Nothing checks later whether it would give
    something else. Raises TypeError for something that is not callable.
    """

    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        named = {name: _plain(tx, value) for name, value in kwargs.items()}
        result = function(*[_plain(tx, value) for value in args], **named)
        return tx.from_constant(result) if is_constant_object(result) else tx.wrap(result, ConstSource(result))

    REGISTERED[_callable(function)] = Rule(function, apply, Effect.READS_STATE)
    return function


def _plain(tx: TraceContext, value: Value) -> Any:
    if isinstance(value, SymbolicValue):
        return tx.specialise(value)
    obj = getattr(value, "obj", None)
    if obj is not None and value.source is not None:
        return obj
    try:
        return value.constant()
    except NotConstant:
        raise Unsupported("not-constant", value.describe()) from None


def _callable(function: Any) -> Any:
    if not callable(function):
        raise TypeError(f"{function!r} is not callable")
    hash(function)
    return function
