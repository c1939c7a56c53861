"""Running something with the frame hook off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import treadle_frame


def without_hook(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run with treadle off: frames that it enters are neither looked up nor compiled.

    A traced graph that is run as it stands calls Python functions of torch (``F.relu``), which would be compiled once more otherwise.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        before = treadle_frame.set_handler(None)
        try:
            return function(*args, **kwargs)
        finally:
            treadle_frame.set_handler(before)

    return run
