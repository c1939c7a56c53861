"""The entry ABI of targets whose entry points are Python functions: the table is a list of tensors and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treadle_codegen.targets.target import Table


class Failure:
    """What an entry point sets when an index is out of range."""

    value = 0


class TensorTable:
    """The entry ABI: the table is a Python list, and a buffer's entry is a tensor."""

    def new_table(self, size: int) -> Table:
        slots: list[Any] = [None] * size
        slots[0] = Failure()
        return Table(slots, slots, slots, slots[0])

    def buffer_text(self, tensor: str, address: str | None = None) -> str:
        return tensor

    def pool_entry(self, pool: torch.Tensor) -> torch.Tensor:
        return pool

    def place(self, slots: Any, arena: torch.Tensor, places: Sequence[tuple[int, int, torch.dtype]]) -> None:
        for slot, offset, dtype in places:
            rest = arena[offset:]
            slots[slot] = rest[: len(rest) // dtype.itemsize * dtype.itemsize].view(dtype)
