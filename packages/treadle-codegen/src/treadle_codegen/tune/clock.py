"""What autotuning asks of a device: one narrow protocol. Tests put a clock in its place that knows every time beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """Measures on one device."""

    @property
    def identity(self) -> str:
        """A text that changes with whatever may change times: the device, its driver, the compilers."""
        ...

    @property
    def noise(self) -> float:
        """The share of its time by which a variant must be faster than the first to be chosen."""
        ...

    def seconds(self, run: Callable[[], Any], label: str) -> float:
        """What one run takes on the device. `label` names what is measured. Raises torch.OutOfMemoryError as `run` does."""
        ...
