"""Warnings of the traced program: issued after the graph, with the place in the program from which they come (`values.outputs`)."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.outputs import queue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import FrameView, TraceContext

# At run time the program may have put a function of its own in its place, which calls it.
_WARN = warnings.warn_explicit


def warn(tx: TraceContext, text: Value, category: type[Warning], frame: FrameView) -> None:
    """Issue a warning as from the line at which a traced frame stands. Raises Unsupported where that would be an exception."""
    if changes_streams(tx):
        raise Unsupported("output", "a warning after the program has changed where warnings go")
    place = _WarningPlace(category, frame)
    check = _IsNoError(place, text.constant() if text.is_constant() else None)
    if not check(warnings):
        raise Unsupported("output", "a warning that is an exception")
    tx.guards.add(ConstSource(warnings), "call", check, f"no filter turns this {category.__name__} into an exception")
    queue(tx, place.warn, text)


def changes_streams(tx: TraceContext) -> bool:
    """Whether the program has set an attribute of a module in which warnings and logging look up where output goes."""
    scopes = {ConstSource(vars(module)) for module in (sys, warnings, logging)}
    return any(source in scopes for source, _, _ in tx.mutations.global_stores())


class _WarningPlace:
    """Where a warning comes from, as Python's own `warnings.warn` would find out from the frame."""

    def __init__(self, category: type[Warning], frame: Any):
        self.category = category
        self.globals = frame.globals
        self.module = frame.globals.get("__name__") or "<string>"
        self.file, self.line, _ = frame.position()

    def warn(self, text: str) -> None:
        """Run-time helper."""
        registry = self.globals.setdefault("__warningregistry__", {})
        # Without the globals, as `warnings.warn` does it: with them the loader is asked for the source, and there may be none.
        _WARN(text, self.category, self.file, self.line, self.module, registry)


class _IsNoError:
    """Guard callable: no filter makes the warning an exception. text: None if it is not known."""

    def __init__(self, place: _WarningPlace, text: str | None):
        self.place, self.text = place, text

    def __call__(self, module: Any) -> bool:
        place = self.place
        for action, message, category, name, line in module.filters:
            if (
                issubclass(place.category, category)
                and (message is None or self.text is None or message.match(self.text))
                and (name is None or name.match(place.module))
                and line in (0, place.line)
            ):
                if action == "error":
                    return False
                if self.text is not None or message is None:
                    return True
        return module.defaultaction != "error"
