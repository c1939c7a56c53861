"""Answers for people: what is cached on a code object, and why a frame found no entry."""

from __future__ import annotations

import sys
from types import CodeType, FunctionType
from typing import NamedTuple

from treadle_frame._core import Entry, FrameInfo, entries, is_skipped


class Rejection(NamedTuple):
    """An entry that did not fit a frame, and the reason of its first failing check."""

    entry: Entry
    reason: str


def why_fails(entry: Entry, frame: FrameInfo) -> str | None:
    """The reason of the first check of the entry's guard that fails for this frame; None when the guard holds."""
    return entry.guard.why_fails(frame.locals, frame.globals, frame.closure, frame.builtins)


def memory(entry: Entry) -> int:
    """Bytes of the entry and of its guard program with what it remembers, without what these refer to: code, payload, arguments."""
    return sys.getsizeof(entry) + sys.getsizeof(entry.guard)


def rejections(frame: FrameInfo) -> list[Rejection]:
    """Why each entry of the frame's code does not fit it, in the order in which they are tried."""
    found = []
    for entry in entries(frame.code):
        reason = why_fails(entry, frame)
        if reason is not None:
            found.append(Rejection(entry, reason))
    return found


def describe(code: CodeType | FunctionType) -> str:
    """The entries and the skip mark of a code object as text: one line per entry, one per check below it."""
    owner = code.__code__ if isinstance(code, FunctionType) else code
    state = ", skipped" if is_skipped(owner) else ""
    lines = [f"{owner.co_qualname} ({owner.co_filename}:{owner.co_firstlineno}){state}"]
    for number, entry in enumerate(entries(owner)):
        kind = "fast path" if entry.fast_path is not None else "code"
        lines.append(f"  entry {number}: {entry.code.co_name}, {kind}, {entry.hits} hits")
        for check in entry.guard.checks:
            path = "".join(f".{step[0]}({', '.join(map(repr, step[1:]))})" for step in check.path)[1:]
            lines.append(f"    {path} {check.op} {check.arg!r}  {check.reason}".rstrip())
    return "\n".join(lines)
