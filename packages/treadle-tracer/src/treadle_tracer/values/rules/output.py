"""Rules of functions that print, warn and log: the call is made after the graph (`values.outputs`)."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import mro_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.values.base import NONE, Constant, is_none
from treadle_tracer.values.class_lookup import find_in_mro
from treadle_tracer.values.deferred_text import joined_text, snapshot
from treadle_tracer.values.deferred_warnings import FILTERS_MUTATED, changes_streams, filters_mutated, warn
from treadle_tracer.values.functions import ClassValue, ModuleObject
from treadle_tracer.values.made_natives import NativeObject
from treadle_tracer.values.outputs import is_stream, queue
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.shown_frames import shown_places
from treadle_tracer.values.text import to_str
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# At run time the program may have put a function of its own in its place, which calls it.
_PRINT = print

# ---- print


def _print(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if kwargs.keys() - {"sep", "end", "file", "flush"}:
        raise Unsupported("output", "print with other arguments")
    stream = kwargs.get("file", NONE)
    if is_none(stream):
        stream = tx.module_attr(ModuleObject(sys), "stdout")
        if is_none(stream):
            return NONE  # a process without output
    if isinstance(stream, NativeObject):
        return _print_into(tx, stream, args, kwargs)
    if not is_stream(stream):
        raise Unsupported("output", f"print to {stream.describe()}")
    options = {name: kwargs[name].constant() for name in ("sep", "end", "flush") if name in kwargs}
    if not all(options.get(name) is None or type(options[name]) is str for name in ("sep", "end")):
        raise Unsupported("output", "print with a separator that is no string")
    queue(tx, _Printer(options), stream, *[to_str(tx, arg) for arg in args])
    return NONE


def _print_into(tx: TraceContext, stream: NativeObject, args: Args, kwargs: Kwargs) -> Value:
    """`print` to a stream that the trace has made: the text is known now, or the graph breaks."""
    given = {name: kwargs.get(name, NONE).constant() for name in ("sep", "end")}
    separator, end = ((" ", "\n")[i] if text is None else text for i, text in enumerate(given.values()))
    if type(separator) is not str or type(end) is not str:
        raise Unsupported("output", "print with a separator that is no string")
    pieces = [piece for arg in args for piece in (separator, to_str(tx, arg))][1:]
    text = joined_text(tx, [*pieces, end])
    if not text.is_constant():
        raise Unsupported("format", text.describe())
    stream.call_method(tx, "write", [text], {})
    return NONE


class _Printer:
    """Run-time helper: `print` with these options."""

    __name__ = "print"

    def __init__(self, options: dict[str, Any]):
        self.options = options

    def __call__(self, stream: Any, *texts: str) -> None:
        _PRINT(*texts, file=stream, **self.options)


# ---- warnings


def _warn(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    named = {**dict(zip(("message", "category", "stacklevel"), args, strict=False)), **kwargs}
    category, level = named.get("category", NONE), named.get("stacklevel", Constant(1))
    text = named.pop("message", NONE)
    if len(args) > 3 or named.keys() - {"category", "stacklevel"} or text.python_type() is not str:
        raise Unsupported("output", "warnings.warn")
    kind = category.obj if isinstance(category, ClassValue) else UserWarning
    if not (isinstance(category, ClassValue) or category.constant() is None) or not issubclass(kind, Warning):
        raise Unsupported("output", f"warnings.warn of category {category.describe()}")
    warn(tx, text, kind, _level(level))
    return NONE


def _level(value: Value) -> int:
    level = value.constant()
    if type(level) is not int:
        raise Unsupported("output", "a stacklevel that is no number")
    return level


# ---- logging

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_STANDARD = "_log handle makeRecord isEnabledFor getEffectiveLevel callHandlers findCaller".split()


_LOG_OPTIONS = {"exc_info", "stack_info", "stacklevel", "extra"}


def _logs(level: int) -> Apply:
    return lambda tx, args, kwargs: _log(tx, [*args[:1], Constant(level), *args[1:]], kwargs)


def _log(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`logger.log(level, message, ...)`"""
    if len(args) < 3 or kwargs.keys() - _LOG_OPTIONS:
        raise Unsupported("output", "a log record with other arguments")
    logger, level, message, *values = args
    obj, number = getattr(logger, "obj", None), level.constant()
    if logger.source is None or not _is_standard(obj) or type(number) is not int:
        raise Unsupported("output", "a logger with methods of its own")
    if _changes_loggers(tx, obj) or changes_streams(tx):
        raise Unsupported("output", "a log record after the program has changed where records go")
    asked = _IsEnabled(number, obj.isEnabledFor(number))
    tx.guards.add(logger.source, "call", asked, f"{logger.source.text}.isEnabledFor({number}) is {asked.answer}")
    if not asked.answer:
        return NONE
    flags = [kwargs.get(name, NONE) for name in ("exc_info", "stack_info", "extra")]
    if any(not flag.is_constant() or flag.constant() for flag in flags):
        raise Unsupported("output", "a log record with a traceback or fields of its own")
    outside = [frame for frame in tx.frames if frame.program.model.filename != logging.info.__code__.co_filename]
    places, at = shown_places(tx, outside), max(_level(kwargs.get("stacklevel", Constant(1))), 1)
    if at > len(places):
        raise Unsupported("output", "the line of the caller is reported")
    text = message if message.python_type() is str else to_str(tx, message)
    shown = [_logged(tx, value) for value in values]
    queue(tx, _Record(obj, number, places[at - 1][:3]), text, TupleValue(shown))
    return NONE


def _logged(tx: TraceContext, value: Value) -> Value:
    """An argument of a record, or its text, which handlers show by `%s`."""
    copy = snapshot(tx, value)
    return copy if copy is not None else to_str(tx, value)


def _is_standard(obj: Any) -> bool:
    if not isinstance(obj, logging.Logger):
        return False
    own = [find_in_mro(mro_of(type(obj)), name)[0] for name in _STANDARD]
    return own == [vars(logging.Logger)[name] for name in _STANDARD] and not any(
        name in vars(obj) for name in _STANDARD
    )


def _changes_loggers(tx: TraceContext, logger: logging.Logger) -> bool:
    """Whether the program has changed a logger or handler, so that records do not go where they would go at the start of the trace."""
    kinds = (logging.Logger, logging.Manager, logging.Handler)
    if any(isinstance(getattr(owner, "obj", None), kinds) for owner, _, _ in tx.mutations.attr_stores()):
        return True
    known = [tx.wrapped[id(items)][1] for items in _lists_of(logger) if id(items) in tx.wrapped]
    return any(map(tx.mutations.is_mutated, known))


def _lists_of(logger: logging.Logger | None) -> Iterator[list[Any]]:
    """The handlers and filters that a record of the logger passes."""
    while logger is not None:
        yield logger.handlers
        yield from (owner.filters for owner in (logger, *logger.handlers))
        logger = logger.parent


class _IsEnabled(GuardCallable):
    """The logger's answer for a level."""

    __slots__ = ("answer",)

    def __init__(self, level: int, answer: bool):
        super().__init__(level)
        self.answer = answer

    def __call__(self, logger: Any) -> bool:
        return logger.isEnabledFor(self.question) is self.answer


class _Record:
    """Run-time helper: a log record of the program's own line."""

    __name__ = "log"

    def __init__(self, logger: logging.Logger, level: int, place: tuple[str, int, str]):
        self.logger, self.level, self.place = logger, level, place

    def __call__(self, message: str, args: tuple[Any, ...]) -> None:
        logger, (file, line, function) = self.logger, self.place
        logger.handle(logger.makeRecord(logger.name, self.level, file, line, message, args, None, function, None, None))


RULES = (
    Rule(print, _print, Effect.GRAPH),
    Rule(warnings.warn, _warn, Effect.GRAPH),
    Rule(FILTERS_MUTATED, filters_mutated, Effect.GRAPH),
    *[Rule(vars(logging.Logger)[name], _logs(level), Effect.GRAPH) for name, level in _LEVELS.items()],
    Rule(logging.Logger.log, _log, Effect.GRAPH),
)
