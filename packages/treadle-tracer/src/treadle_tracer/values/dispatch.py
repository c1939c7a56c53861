"""`functools.singledispatch`: which function serves a class is asked while tracing, and again by a guard.

The generic function is Python code, and traced. Its `dispatch` looks into a dictionary of weak references, which the trace leaves alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import qualname_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import ConcreteValue
from treadle_tracer.values.functions import ClassValue
from treadle_tracer.values.value import Value
from treadle_tracer.weakly import reference_to, referent

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

DISPATCH_CODE = functools.singledispatch(len).dispatch.__code__
"""Code of every function's `dispatch`."""


class Dispatch(ConcreteValue):
    """The `dispatch` of a generic function."""

    __slots__ = ()

    def truth(self, tx: TraceContext) -> bool:
        return True

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        plain = not kwargs and len(args) == 1 and isinstance(args[0], ClassValue)
        if not plain or id(args[0].obj) in tx.mutations.made or self.is_known_in_part(tx):  # type: ignore[attr-defined]
            raise Unsupported("builtin-call", f"{self.describe()} of these arguments")
        cls = args[0].obj  # type: ignore[attr-defined]
        chosen = self.obj(cls)
        check = _Chooses(cls, chosen)
        tx.guards.add(
            ConstSource(self.obj), "call", check, f"{self.describe()} gives the same function for {qualname_of(cls)}"
        )
        return tx.wrap_known(chosen)

    def is_known_in_part(self, tx: TraceContext) -> bool:
        """Whether the trace has looked into the tables of the function: it may have changed them."""
        held = [cell.cell_contents for cell in self.obj.__closure__]
        return any(id(part) in tx.wrapped for table in held for part in (table, getattr(table, "data", None)))


class _Chooses:
    """Guard callable: a generic function has the recorded function for a class."""

    __slots__ = ("chosen", "cls")

    def __init__(self, cls: type, chosen: Callable[..., Any]):
        self.cls, self.chosen = reference_to(cls), reference_to(chosen)

    def __call__(self, dispatch: Callable[[Any], Any]) -> bool:
        cls = referent(self.cls)
        return cls is not None and dispatch(cls) is referent(self.chosen)
