"""Functions of PyTorch that warn when they are called on fake tensors.

In the program they warn in every call, from the user's line; in the graph they would warn of fake tensors when it is compiled, and of what
size-oblivious answers make of the sizes. So the call is given up: a Python function is evaluated in place, which defers its warning
(`deferred_warnings`), and everything else is left to Python.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Warned(BaseException):
    """A call has got to the line that warns. Not an Exception: no function that handles one is to go on."""


@contextmanager
def raise_at_warnings() -> Iterator[None]:
    """Raise Warned where PyTorch's code calls `warnings.warn` in this thread in the block. Other threads and other code warn as ever.

    The function is exchanged, not the filters: these are looked at by all threads, and a change of them makes every place warn again.
    """
    thread, present = threading.get_ident(), warnings.warn

    def warn(message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any) -> None:
        if is_active and threading.get_ident() == thread:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] == "torch":
                raise Warned
        present(message, category, stacklevel + 1, *args, **kwargs)

    is_active = True
    warnings.warn = warn  # type: ignore[assignment]
    try:
        yield
    finally:
        is_active = False  # whoever has got hold of the function in the meantime may keep it
        warnings.warn = present
