"""Room on the stack: a compile needs more of it than the call that causes it.

Python refuses calls below a depth (`sys.getrecursionlimit`). A compile may go deeper than that. Where it still runs out of room, the
frame runs uncompiled this time, and the next call may come from less deep.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

# Frames of a compile at most: those of the tracer for the calls that it follows into, and those of the passes behind it.
ROOM = 30_000
# A compile that begins above this depth and runs out of room would do so anywhere.
_SHALLOW = 300


@contextlib.contextmanager
def room_to_recurse() -> Iterator[None]:
    """Let calls nest as deeply as a compile needs."""
    before = sys.getrecursionlimit()
    _limits_of_the_program.append(before)
    sys.setrecursionlimit(max(before, ROOM))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
        _limits_of_the_program.pop()


_limits_of_the_program: list[int] = []


def recursion_limit() -> int:
    """What `sys.getrecursionlimit` gives where nothing is being compiled."""
    return (*_limits_of_the_program, sys.getrecursionlimit())[0]


def is_out_of_room(error: BaseException | None) -> bool:
    """Whether an exception comes from a depth that was used up before the compile began, rather than from a bug."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, RecursionError):
            return _depth() > _SHALLOW
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None and depth <= _SHALLOW:
        frame, depth = frame.f_back, depth + 1
    return depth


__all__ = ["ROOM", "is_out_of_room", "recursion_limit", "room_to_recurse"]
