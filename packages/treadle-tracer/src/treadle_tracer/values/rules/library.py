"""Rules of functions of the standard library on constant data: `json`, `hashlib`, substitution by a function in `re`."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant, is_none, settled
from treadle_tracer.values.deferred_text import text_of
from treadle_tracer.values.made_natives import MAKERS, new_native
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.plain_arguments import plain_arguments
from treadle_tracer.values.plain_containers import DEEPEST, members_of
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- json

_OPTIONS = frozenset("skipkeys ensure_ascii check_circular allow_nan indent separators sort_keys".split())
_ATOMS = (str, int, float, bool, type(None))


def _dumps(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`json.dumps(data, ...)` of plain data; numbers that the graph computes are written after it."""
    unknown = [name for name, value in kwargs.items() if name not in _OPTIONS and not is_none(value)]
    if len(args) != 1 or unknown:
        raise Unsupported("call", "json.dumps with these options")
    _, options = plain_arguments((), kwargs)
    if _has_numbers(args[0], 0):
        if options.get("allow_nan", True) is not True:
            raise Unsupported("raises", "json.dumps of numbers that may be none")
        return text_of(tx, functools.partial(json.dumps, **options), args[0])
    try:
        return Constant(json.dumps(_plain(args[0], 0), **options))
    except (TypeError, ValueError) as error:
        raise Unsupported("raises", f"json.dumps: {error}") from None


def _parts(value: Value, depth: int) -> list[Value] | None:
    """Keys and items of plain containers, None for what is no such container."""
    if depth > DEEPEST:
        raise Unsupported("call", "json.dumps of data that is nested deeply")
    return members_of(value)


def _has_numbers(value: Value, depth: int) -> bool:
    """Whether a number in the data is known only when the graph has run."""
    value = settled(value)
    parts = _parts(value, depth)
    return isinstance(value, SymbolicValue) if parts is None else any(_has_numbers(part, depth + 1) for part in parts)


def _plain(value: Value, depth: int) -> Any:
    value = settled(value)
    parts = _parts(value, depth)
    if parts is None:
        if not value.is_constant() or not is_one_of(type(value.constant()), _ATOMS):
            raise Unsupported("call", f"json.dumps of {value.describe()}")
        return value.constant()
    plain = [_plain(part, depth + 1) for part in parts]
    return dict(zip(plain[::2], plain[1::2], strict=True)) if isinstance(value, DictValue) else plain


def _loads(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`json.loads(text)`"""
    if len(args) != 1 or kwargs or not args[0].is_constant() or type(args[0].constant()) not in (str, bytes):
        raise Unsupported("call", "json.loads of these arguments")
    try:
        return tx.from_constant(json.loads(args[0].constant()))
    except ValueError as error:
        raise Unsupported("raises", f"json.loads: {error}") from None


# ---- re


def _substitute(function: Any) -> Apply:
    """`re.sub` and `re.subn`"""

    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        given = dict(zip(("pattern", "repl", "string", "count", "flags"), args, strict=False)) | kwargs
        if len(args) > 5 or not {"pattern", "repl", "string"} <= given.keys() or given["repl"].is_constant():
            return tx.fold(function, args, kwargs, may_warn=True)
        flags = given.pop("flags", Constant(0))
        pattern = tx.fold(re.compile, [given.pop("pattern"), flags], {})
        return pattern.call_method(tx, function.__name__, [], given)

    return apply


def _compiled(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """The pattern of a text, which the module may have in its cache or not."""
    return tx.fold(re._compile, args, kwargs, may_warn=True)  # type: ignore[attr-defined]


RULES = (
    Rule(re._compile, _compiled, Effect.NONE),  # type: ignore[attr-defined]
    *[Rule(function, _substitute(function)) for function in (re.sub, re.subn)],
    Rule(json.dumps, _dumps, Effect.ARGUMENTS),
    Rule(json.loads, _loads, Effect.NONE),
    *[Rule(maker, new_native(maker), Effect.NONE) for maker in MAKERS if not isinstance(maker, type)],
)
