"""What `benchmarks/gpu.py` measures: one record per case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def call_it(compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return compiled(*arguments)


@dataclass
class Work:
    """A case on a device.

    compute: what is compiled. arguments: sets of arguments, taken in turn, so that no call finds its inputs in the cache.
    moved: bytes that must be read and written at least; flops: likewise, of products. run: a call of the compiled `compute`.
    """

    compute: Callable[..., Any]
    arguments: list[tuple[Any, ...]]
    moved: int | None = None
    flops: int | None = None
    run: Callable[[Callable[..., Any], tuple[Any, ...]], Any] = call_it


@dataclass(frozen=True)
class Case:
    """What is measured: `part` of the benchmark, `name`, `size` and `dtype` as the results name them.

    how: "device" for time on the device, "wall" for the wait of a user, "host" for calls that follow each other.
    with_grad: whether autograd records.
    """

    part: str
    name: str
    size: str
    dtype: str
    build: Callable[[torch.device], Work]
    how: str = "device"
    with_grad: bool = False

    @property
    def key(self) -> str:
        return "/".join((self.part, self.name, self.size, self.dtype))
