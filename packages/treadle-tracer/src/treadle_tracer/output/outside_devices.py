"""Default devices that the program has set around a compiled function (`with torch.device("cuda"):`, `torch.set_default_device`).

A default device is a mode that sees every call of torch. A trace, and a graph, run without it: the calls of the graph name their devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._device import DeviceContext

_LENGTH = torch._C._len_torch_function_stack
_AT = torch._C._get_function_stack_at


class _Outside(threading.local):
    devices: tuple[torch.device, ...] = ()


_OUTSIDE = _Outside()


def has_other_modes() -> bool:
    """Whether a torch function mode is active that is no default device."""
    return any(type(_AT(k)) is not DeviceContext for k in range(_LENGTH()))


def active_devices() -> tuple[torch.device, ...]:
    """The default devices on the stack of modes, outermost first. There is no other mode on it."""
    return tuple(_AT(k).device for k in range(_LENGTH()))


def devices_outside() -> tuple[torch.device, ...]:
    """The default devices that `without_devices` has taken away around this place."""
    return _OUTSIDE.devices


@contextmanager
def without_devices() -> Iterator[None]:
    """Inside, there is no default device; `devices_outside` tells which there are."""
    if not _LENGTH():
        yield
        return
    before, _OUTSIDE.devices = _OUTSIDE.devices, active_devices()
    modes = [torch._C._pop_torch_function_stack() for _ in range(_LENGTH())]
    try:
        yield
    finally:
        _OUTSIDE.devices = before
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


def run_without_devices(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which runs without default devices."""

    def run(*args: Any) -> Any:
        with without_devices():
            return function(*args)

    return run
