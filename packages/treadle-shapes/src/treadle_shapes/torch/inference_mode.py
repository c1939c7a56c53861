"""Inference mode as two calls that a graph can hold.

    with torch.inference_mode(): y = x + 1     =>     enter_inference_mode(True); y = x + 1; leave_inference_mode()

PyTorch's own guard is an object that must not be destroyed out of order, which nobody can promise for a value of a graph that raises. So
the guards of a thread lie on a stack of their own.
"""

from __future__ import annotations

import threading
from typing import Any

import torch


class _Entered(threading.local):
    """The guards of one thread that are entered and not left, outermost first."""

    def __init__(self) -> None:
        self.guards: list[Any] = []


_ENTERED = _Entered()


def enter_inference_mode(enabled: bool) -> None:
    """Turn inference mode on or off until `leave_inference_mode` is called, as `torch.inference_mode(enabled).__enter__` does."""
    guard: Any = torch._C._InferenceMode(enabled)  # type: ignore[attr-defined]
    guard.__enter__()
    _ENTERED.guards.append(guard)


def leave_inference_mode() -> None:
    """Restore what the last call of `enter_inference_mode` has changed: inference mode and grad mode."""
    _ENTERED.guards.pop().__exit__(None, None, None)


def inference_mode_depth() -> int:
    """How many calls of `enter_inference_mode` have not been undone in this thread."""
    return len(_ENTERED.guards)


def leave_inference_modes(depth: int) -> None:
    """Undo the calls of `enter_inference_mode` beyond the first `depth`."""
    while len(_ENTERED.guards) > depth:
        leave_inference_mode()


__all__ = ["enter_inference_mode", "inference_mode_depth", "leave_inference_mode", "leave_inference_modes"]
