"""Warnings of the traced program: issued after the graph, with the place in the program from which they come (`values.outputs`)."""

from __future__ import annotations

import logging
import sys
import types
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import NONE, Constant, LazyValue, is_none
from treadle_tracer.values.functions import ClassValue, ModuleObject
from treadle_tracer.values.outputs import queue
from treadle_tracer.values.shown_frames import Place, level_outside, shown_places
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# At run time the program may have put functions of its own in their place, which call them.
_WARN = warnings.warn
_WARN_EXPLICIT = warnings.warn_explicit
FILTERS_MUTATED = vars(warnings)["_filters_mutated"]


def warn(tx: TraceContext, text: Value, category: type[Warning], level: int = 1) -> None:
    """Issue a warning as from the line that `warnings.warn` with this `stacklevel` finds. Raises Unsupported where it is an exception."""
    places = shown_places(tx)
    level = max(level, 1)
    place = places[level - 1] if level <= len(places) else None
    if changes_filters(tx) and place is not None:
        _warn_under_own_filters(tx, text, category, place)
        return
    if changes_streams(tx):
        raise Unsupported("output", "a warning after the program has changed where warnings go")
    function = _WarningOutside(tx, category, level - len(places)) if place is None else _WarningPlace(category, place)
    known_text = text.constant() if text.is_constant() else None
    module = None if place is None else _module_of(place)
    check = _IsNoError(category, known_text, module, None if place is None else place.line)
    if not check(warnings):
        raise Unsupported("output", "a warning that is an exception")
    tx.guards.add(ConstSource(warnings), "call", check, f"no filter turns this {category.__name__} into an exception")
    queue(tx, function.warn, text)


def changes_streams(tx: TraceContext) -> bool:
    """Whether the program has set an attribute of a module in which warnings and logging look up where output goes."""
    return _changes_attributes(tx, (sys, warnings, logging))


def changes_filters(tx: TraceContext) -> bool:
    """Whether the program has other filters for warnings at present, or shows them in another way, than before the trace."""
    known = tx.wrapped.get(id(warnings.filters))
    is_mutated = known is not None and tx.mutations.is_mutated(known[1])
    return is_mutated or _changes_attributes(tx, (warnings,))


def _changes_attributes(tx: TraceContext, modules: Iterable[types.ModuleType], wanted: str | None = None) -> bool:
    """Whether an attribute of the modules, or the one that is wanted, is another object at present than before the trace."""
    scopes = {ConstSource(vars(module)): vars(module) for module in modules}
    return any(
        source in scopes and wanted in (None, name) and not _is_as_before(tx, scopes[source].get(name), stored)
        for source, name, stored in tx.mutations.global_stores()
        if source is not None
    )


def _is_as_before(tx: TraceContext, before: Any, stored: Any) -> bool:
    """Whether what the program has stored is the object of before the trace, as it was then."""
    known = tx.wrapped.get(id(before))
    return known is not None and known[1] is stored and not tx.mutations.is_mutated(known[1])


# ---- inside `warnings.catch_warnings`, whose filters the trace knows


def _warn_under_own_filters(tx: TraceContext, text: Value, category: type[Warning], place: Place) -> None:
    """A warning that a filter of the program ignores, records or makes an exception. Raises Unsupported where another one decides."""
    action = _action(tx, category, place.line)
    is_recorded = action == "always" and _changes_attributes(tx, (warnings,), "_showwarnmsg_impl")
    if action not in ("ignore", "error") and not is_recorded:
        raise Unsupported("output", "a warning after the program has changed where warnings go")
    queue(tx, _UnseenWarning(category, place).warn, text)
    if action == "ignore":
        return
    message = tx.wrap_known(category).call(tx, [text], {})
    if action == "error":
        raise Raised(message)
    where = [Constant(place.file), Constant(place.line)]
    given = [message, tx.wrap_known(category), *where, NONE, NONE, NONE]
    shown = tx.wrap_known(warnings.WarningMessage).call(tx, given, {})
    tx.wrap_known(vars(warnings)["_showwarnmsg"]).call(tx, [shown], {})


def _action(tx: TraceContext, category: type[Warning], line: int) -> str | None:
    """What the first filter that takes the warning does, of those that are in force in the trace; None if that is not known."""
    filters = tx.module_attr(ModuleObject(warnings), "filters")
    for item in getattr(filters, "items", ()):
        item = item.force(tx) if isinstance(item, LazyValue) else item
        action, message, kind, module, number = item.unpack(tx)
        if not isinstance(kind, ClassValue) or not number.is_constant() or not action.is_constant():
            return None
        if not issubclass(category, kind.obj) or number.constant() not in (0, line):
            continue
        return action.constant() if is_none(message) and is_none(module) else None
    return None


class _WarningPlace:
    """A warning from a place of the trace, as Python's own `warnings.warn` would find it out from the frame."""

    def __init__(self, category: type[Warning], place: Place):
        self.category, self.place = category, place

    def warn(self, text: str) -> None:
        """Run-time helper."""
        place = self.place
        registry = place.globals.setdefault("__warningregistry__", {})
        # Without the globals, as `warnings.warn` does it: with them the loader is asked for the source, and there may be none.
        _WARN_EXPLICIT(text, self.category, place.file, place.line, _module_of(place), registry)


class _UnseenWarning(_WarningPlace):
    """What remains of a warning that is not shown: the registry of the module that it comes from is made, or cleared."""

    def warn(self, text: str) -> None:
        """Run-time helper."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().warn(text)


def filters_mutated(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`warnings._filters_mutated()`: all registries of warnings are out of date. The program has just changed filters."""
    tx.has_own_filters = changes_filters(tx)
    queue(tx, FILTERS_MUTATED)
    return NONE


def _module_of(place: Place) -> str:
    return place.globals.get("__name__") or "<string>"


class _WarningOutside:
    """A warning from the place of a caller of the compiled function. above: the root frame's own caller is 1."""

    def __init__(self, tx: TraceContext, category: type[Warning], above: int):
        skipped = tx.frames[0].frames_between
        if skipped is None:
            raise Unsupported("output", "the line of the caller is reported")
        self.category, self.above, self.skipped = category, above, skipped

    def warn(self, text: str) -> None:
        """Run-time helper. It is called by another one, and that by the replacement of the root frame."""
        _WARN(text, self.category, level_outside(sys._getframe(2), 3, self.above, self.skipped))


class _IsNoError:
    """Guard callable: no filter makes the warning an exception. text, module, line: None if it is not known."""

    def __init__(self, category: type[Warning], text: str | None, module: str | None, line: int | None):
        self.category, self.text, self.module, self.line = category, text, module, line

    def __call__(self, warnings_module: Any) -> bool:
        for action, message, category, name, line in warnings_module.filters:
            parts = (
                _matches(message, self.text),
                _matches(name, self.module),
                True if line == 0 else None if self.line is None else line == self.line,
            )
            if not issubclass(self.category, category) or False in parts:
                continue
            if action == "error":
                return False
            if None not in parts:
                return True
        return bool(warnings_module.defaultaction != "error")


def _matches(pattern: Any, text: str | None) -> bool | None:
    """Whether a filter without a pattern or with this one takes the text; None if that is not known.

    The filters that Python starts with have a text (`__main__`) in place of a pattern, which must be equal.
    """
    if pattern is None:
        return True
    if isinstance(pattern, str):
        return None if text is None else pattern == text
    return None if text is None else pattern.match(text) is not None
