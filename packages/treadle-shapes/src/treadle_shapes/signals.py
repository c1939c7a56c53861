"""Handlers of signals wait while a compile runs.

Python runs them between any two steps of the main thread. An exception that comes out of one in the middle of PyTorch's Python code for
fake tensors leaves their mode switched on, or ends the process. A handler that calls a compiled function would compile inside a compile.

    with signals_held():        # Ctrl-C is noted
        compile()
    ...                         # KeyboardInterrupt
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_kept: dict[int, Callable[[int, FrameType | None], Any]] = {}  # the handlers that wait
_arrived: list[int] = []


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """In the main thread, the program's handlers run behind this block. May be nested: behind the outermost block.

    Who presses Ctrl-C twice does not want to wait: the second one interrupts at once.
    """
    if threading.get_ident() != threading.main_thread().ident or _kept:
        yield
        return
    try:
        _hold()
        yield
    finally:
        _run(_release())


def _hold() -> None:
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and number not in _OF_ERRORS:
            _kept[number] = handler
            signal.signal(number, _note)


def _note(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT and number in _arrived:
        _kept[number](number, frame)
    else:
        _arrived.append(number)


def _release() -> list[tuple[int, Any]]:
    """Put the handlers back; the signals that have arrived, with their handlers."""
    for number, handler in _kept.items():
        if signal.getsignal(number) is _note:
            signal.signal(number, handler)
    waiting = [(number, _kept[number]) for number in dict.fromkeys(_arrived)]
    _kept.clear()
    _arrived.clear()
    return waiting


def _run(waiting: list[tuple[int, Any]]) -> None:
    """Run handlers, also behind one that raises."""
    if waiting:
        (number, handler), *others = waiting
        try:
            handler(number, sys._getframe(1))
        finally:
            _run(others)


# Raised by an instruction of the program itself: behind a handler that only notes them, the instruction would run again.
_OF_ERRORS = {
    getattr(signal, name) for name in ("SIGSEGV", "SIGFPE", "SIGILL", "SIGBUS", "SIGABRT") if hasattr(signal, name)
}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)  # by another thread: in the child nobody leaves the block

__all__ = ["signals_held"]
