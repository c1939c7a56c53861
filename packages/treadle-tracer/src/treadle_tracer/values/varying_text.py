"""Strings that differ from call to call.

    def f(x, name):
        seen[name] = x.mean()
        return x * 2 if name.startswith("scale") else x

The string stays open: what the program asks of it is guarded by the answer. Whatever else reads it makes it a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.computed_source import ComputedSource, OnPlainValues, is_plain
from treadle_tracer.source import Source
from treadle_tracer.values.base import Constant, Method
from treadle_tracer.values.class_lookup import MISSING
from treadle_tracer.values.sequences import look_up_items
from treadle_tracer.values.value import NotConstant, Value
from treadle_tracer.values.varying import KINDS, VaryingKind, hint_of, operand_of, varies

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class OpenText(Constant):
    """A string that is not a constant of the trace until something reads `obj`."""

    __slots__ = ()
    is_computed = True

    def python_type(self) -> type:
        return str

    def truth(self, tx: TraceContext) -> bool:
        found = answer(tx, bool, [self])
        return super().truth(tx) if found is None else found.constant()

    def length_value(self, tx: TraceContext) -> Value:
        found = answer(tx, len, [self])
        return super().length_value(tx) if found is None else found

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if type(getattr(str, name, None)) in _METHODS:
            return Method(self, name, getattr(str, name))
        return super().get_attr(tx, name)

    def call_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if type(getattr(str, name, None)) in _METHODS:
            return self.builtin_method(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raw = getattr(str, name, MISSING)
        found = answer(tx, raw, [self, *args]) if type(raw) in _METHODS and not kwargs else None
        return super().builtin_method(tx, name, args, kwargs) if found is None else found


_METHODS = (type(str.upper), type(str.__add__))


class VaryingText(OpenText):
    """The string at a source. Reading `obj` guards it."""

    __slots__ = ("_tx", "text")

    def __init__(self, tx: TraceContext, text: str, source: Source):
        self.source = source
        self.text = text
        self._tx = tx

    @property
    def obj(self) -> str:  # type: ignore[override]
        assert self.source is not None
        self._tx.guards.add(self.source, "equals", self.text)
        return self.text

    def describe(self) -> str:
        assert self.source is not None
        return self.source.text


def wrap_text(tx: TraceContext, text: str, source: Source) -> Value:
    """A string that varies."""
    tx.guards.add(source, "type_is", str)
    return VaryingText(tx, text, source)


KINDS[VaryingText] = VaryingKind(lambda tx, value: value.source, lambda tx, value: value.text)


def answer(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value | None:
    """`function(*args)` of strings and numbers that vary, guarded by its result: a truth by its value, numbers and strings vary in turn.

    None where the function raises, where an argument is known only to the graph, and for other results.
    """
    for arg in args:
        look_up_items(tx, arg)
    try:
        operands = tuple([operand_of(tx, arg) for arg in args])
        plain = [hint_of(tx, arg) if varies(arg) else arg.constant() for arg in args]
        if not all(isinstance(o, Source) or is_plain(o) for o in operands):
            return None
        result = function(*plain)
    except (NotConstant, TypeError, ValueError, LookupError, ArithmeticError):
        return None
    if type(result) not in _RESULTS:
        return None
    return tx.wrap(result, ComputedSource(_on_plain_values(function), operands))


_RESULTS = (str, int, float, bool, type(None))


@functools.cache
def _on_plain_values(function: Callable[..., Any]) -> OnPlainValues:
    """One object for each function: sources are compared by it."""
    return OnPlainValues(function)
