"""Run a function with the frame hook off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import treadle_frame


def without_hook(function: Callable[..., Any]) -> Callable[..., Any]:
    """A callable that runs `function` with treadle off: frames below it are neither compiled nor replaced by compiled code.

    A traced graph that runs as it is calls Python functions of torch (``F.relu``), which would be compiled otherwise.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        before = treadle_frame.set_handler(None)
        try:
            return function(*args, **kwargs)
        finally:
            treadle_frame.set_handler(before)

    return run
