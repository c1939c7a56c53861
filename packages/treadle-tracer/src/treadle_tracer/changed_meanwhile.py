"""Containers of the program that another thread, or a signal handler, changes while they are traced.

CPython refuses to go on with an iteration then. That is no fault of the program, which may never iterate over the container itself, and
none of the tracer: the call runs in Python, and the next one may be traced in peace.
"""

from __future__ import annotations

# Objects/dictobject.c, Objects/setobject.c, Objects/odictobject.c and Modules/_collectionsmodule.c of CPython 3.11 to 3.13
_REFUSALS = (
    "dictionary changed size during iteration",
    "dictionary keys changed during iteration",
    "Set changed size during iteration",
    "OrderedDict changed size during iteration",
    "OrderedDict mutated during iteration",
    "deque mutated during iteration",
)

MOST_TIMES = 8
"""A trace that ends so often in this way would do so again: then it is a bug of ours."""


def is_changed_meanwhile(error: BaseException | None) -> bool:
    """Whether an exception of the tracer says that a container changed while the tracer was iterating over it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if type(error) is RuntimeError and str(error) in _REFUSALS:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


__all__ = ["MOST_TIMES", "is_changed_meanwhile"]
