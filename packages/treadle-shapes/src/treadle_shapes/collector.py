"""Pauses the cyclic garbage collector while a compile, or the import of the compiler, runs.

Both make some hundred thousand objects, and nearly all of them live until the end, or for good. They would trigger collections, and a full
collection visits every object of the process: 0.25 s with torch and transformers, a fifth of a warm first step of BERT.

    with paused():              # no collection starts in here
        compile()
    ...                         # one collection of what is young has run; a full one comes when the program itself makes objects
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Inside, no collection starts by itself, in any thread. May be nested. A collector that is off stays off.

    At the end of the outermost pause the youngest generation is collected if a collection is due. Python would choose the oldest
    generation whose turn it is, and so let a program that makes no objects wait for a full collection because it has compiled.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        try:
            if _is_due():
                gc.collect(0)
        finally:
            gc.enable()


def _is_due() -> bool:
    """Whether Python starts a collection at the next object that it makes. With a threshold of 0 it never does."""
    threshold = gc.get_threshold()[0]
    return 0 < threshold < gc.get_count()[0]


__all__ = ["paused"]
