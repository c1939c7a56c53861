"""Warnings of the traced program: issued after the graph, with the place in the program from which they come (`values.outputs`)."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.outputs import queue
from treadle_tracer.values.shown_frames import Place, level_outside, shown_places
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# At run time the program may have put functions of its own in their place, which call them.
_WARN = warnings.warn
_WARN_EXPLICIT = warnings.warn_explicit


def warn(tx: TraceContext, text: Value, category: type[Warning], level: int = 1) -> None:
    """Issue a warning as from the line that `warnings.warn` with this `stacklevel` finds. Raises Unsupported where it is an exception."""
    if changes_streams(tx):
        raise Unsupported("output", "a warning after the program has changed where warnings go")
    places = shown_places(tx)
    level = max(level, 1)
    place = places[level - 1] if level <= len(places) else None
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
    scopes = {ConstSource(vars(module)) for module in (sys, warnings, logging)}
    return any(source in scopes for source, _, _ in tx.mutations.global_stores())


def _module_of(place: Place) -> str:
    return place.globals.get("__name__") or "<string>"


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
    """Whether a filter without a pattern or with this one takes the text; None if that is not known."""
    if pattern is None:
        return True
    return None if text is None else pattern.match(text) is not None
