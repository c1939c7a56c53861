"""Binding call arguments to parameters, as CPython does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_CO_VARARGS, _CO_VARKEYWORDS = 0x04, 0x08


def bind_arguments(
    tx: TraceContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Value]:
    """Name -> value of all parameters. Raises TypeError in the traced program where Python would."""
    code = function.code
    count, names = code.co_argcount, code.co_varnames
    keyword_only = code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:count], args, strict=False))
    if len(args) > count and not code.co_flags & _CO_VARARGS:
        tx.raise_exception(
            TypeError, f"{function.qualname}() takes {count} positional arguments but {len(args)} were given"
        )
    extra: dict[str, Value] = {}
    if kwargs:
        named = names[code.co_posonlyargcount : count + keyword_only]
        for name, value in kwargs.items():
            if name not in named:
                extra[name] = value
            elif name in bound:
                tx.raise_exception(TypeError, f"{function.qualname}() got multiple values for argument {name!r}")
            else:
                bound[name] = value
    if extra and not code.co_flags & _CO_VARKEYWORDS:
        name = next(iter(extra))
        tx.raise_exception(TypeError, f"{function.qualname}() got an unexpected keyword argument {name!r}")
    _defaults(tx, function, bound, names[:count], names[count : count + keyword_only])
    position = count + keyword_only
    if code.co_flags & _CO_VARARGS:
        bound[names[position]] = TupleValue(args[count:])
        position += 1
    if code.co_flags & _CO_VARKEYWORDS:
        bound[names[position]] = DictValue({name: (tx.from_constant(name), value) for name, value in extra.items()})
    return bound


def _defaults(
    tx: TraceContext,
    function: FunctionValue,
    bound: dict[str, Value],
    positional: tuple[str, ...],
    keyword: tuple[str, ...],
) -> None:
    defaults = function.defaults
    first = len(positional) - len(defaults)
    for position, name in enumerate(positional):
        if name not in bound:
            if position < first:
                tx.raise_exception(TypeError, f"{function.qualname}() missing required positional argument: {name!r}")
            bound[name] = defaults[position - first]
    for name in keyword:
        if name not in bound:
            if name not in function.kwdefaults:
                tx.raise_exception(TypeError, f"{function.qualname}() missing required keyword-only argument: {name!r}")
            bound[name] = function.kwdefaults[name]
