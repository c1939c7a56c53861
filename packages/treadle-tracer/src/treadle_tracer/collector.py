"""The cyclic garbage collector waits while a compile runs.

A compile makes some hundred thousand objects, nearly all of which live until its end. Each one counts towards the next collection, and a
full one looks at every object of the process: 0.15 s beside torch and transformers, a fifth of a cold compile of BERT.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collection starts by itself inside, in any thread; may be nested. Where the collector is off already it stays so."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


__all__ = ["paused"]
