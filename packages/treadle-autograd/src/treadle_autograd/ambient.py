"""The settings of PyTorch under which a graph was traced, for a second trace or run of it: backward passes find others.

with torch.autocast("cpu", torch.bfloat16): loss = f(x)     traced and run under autocast
torch.autograd.grad(loss, x, create_graph=True)             runs f again, outside
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Ambient:
    """autocast: for each device type, whether autocast is on and to which dtype; default_dtype: of new floating-point tensors."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    default_dtype: torch.dtype

    @classmethod
    def current(cls) -> Ambient:
        autocast = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES)
        return cls(autocast, torch.get_default_dtype())

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Inside, the settings are these, and autocast keeps no casts of weights, which would belong to this run's history."""
        before, caches = Ambient.current(), torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        self._set()
        try:
            yield
        finally:
            before._set()
            torch.set_autocast_cache_enabled(caches)

    def _set(self) -> None:
        for device, is_on, dtype in self.autocast:
            torch.set_autocast_enabled(device, is_on)
            torch.set_autocast_dtype(device, dtype)
        torch.set_default_dtype(self.default_dtype)
