"""Binding call arguments to parameters, as CPython does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.errors import Unsupported
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
    extra: dict[str, Value] = {}
    if kwargs:
        named = names[code.co_posonlyargcount : count + keyword_only]
        for name, value in kwargs.items():
            if name not in named:
                if not code.co_flags & _CO_VARKEYWORDS:
                    _refuse_keyword(tx, function, name, kwargs)
                extra[name] = value
            elif name in bound:
                tx.raise_exception(TypeError, f"{function.qualname}() got multiple values for argument {name!r}")
            else:
                bound[name] = value
    if len(args) > count and not code.co_flags & _CO_VARARGS:
        _refuse_surplus(tx, function, len(args), sum(name in bound for name in names[count : count + keyword_only]))
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
    for kind, missing in (
        ("positional", [name for name in positional[: max(first, 0)] if name not in bound]),
        ("keyword-only", [name for name in keyword if name not in bound and name not in function.kwdefaults]),
    ):
        if missing:
            count = f"{len(missing)} required {kind} argument{_plural(len(missing))}"
            tx.raise_exception(TypeError, f"{function.qualname}() missing {count}: {_listed(missing)}")
        if kind == "positional":
            for position, name in enumerate(positional[first:], first):
                bound.setdefault(name, defaults[position - first])
    for name in keyword:
        if name not in bound:
            bound[name] = function.kwdefaults[name]


# ---- Python's own words (Python/ceval.c: format_missing, too_many_positional, positional_only_passed_as_keyword)


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _listed(names: list[str]) -> str:
    *others, last = map(repr, names)
    if not others:
        return last
    return f"{', '.join(others)}{',' if len(others) > 1 else ''} and {last}"


def _refuse_surplus(tx: TraceContext, function: FunctionValue, given: int, keyword_only: int) -> NoReturn:
    wanted, optional = function.code.co_argcount, len(function.defaults)
    takes = f"from {wanted - optional} to {wanted}" if optional else str(wanted)
    takes += f" positional argument{'s' if optional else _plural(wanted)}"
    gives = str(given)
    if keyword_only:
        gives += (
            f" positional argument{_plural(given)} (and {keyword_only} keyword-only argument{_plural(keyword_only)})"
        )
    was = "was" if given == 1 and not keyword_only else "were"
    tx.raise_exception(TypeError, f"{function.qualname}() takes {takes} but {gives} {was} given")


def _refuse_keyword(tx: TraceContext, function: FunctionValue, name: str, kwargs: dict[str, Value]) -> NoReturn:
    code = function.code
    by_position = [name for name in code.co_varnames[: code.co_posonlyargcount] if name in kwargs]
    if by_position:
        text = f"got some positional-only arguments passed as keyword arguments: '{', '.join(by_position)}'"
        tx.raise_exception(TypeError, f"{function.qualname}() {text}")
    if MINOR >= 13:  # which suggests other names
        raise Unsupported("raises", f"{function.qualname}() has no argument {name!r}")
    tx.raise_exception(TypeError, f"{function.qualname}() got an unexpected keyword argument {name!r}")
