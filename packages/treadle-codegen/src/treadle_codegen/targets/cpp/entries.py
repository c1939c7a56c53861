"""The entry ABI of compiled C++: an entry point takes the address of one table of pointers, integers and doubles."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_codegen.targets.target import Table

ERROR_SLOT = 0  # a pointer to the int64 where kernels report an index out of range


class PointerTable:
    """`EntryABI` of ctypes functions `void entry(void** table)`; numbers stand in the table like pointers."""

    def new_table(self, size: int) -> Table:
        slots, error = (ctypes.c_void_p * size)(), ctypes.c_int64(0)
        slots[ERROR_SLOT] = ctypes.addressof(error)
        floats = (ctypes.c_double * size).from_buffer(slots)
        return Table(slots, floats, ctypes.addressof(slots), error)

    def buffer_text(self, tensor: str, address: str | None = None) -> str:
        return address or f"{tensor}.data_ptr()"

    def pool_entry(self, pool: torch.Tensor) -> int:
        return pool.data_ptr()

    def place(self, slots: Any, arena: torch.Tensor, places: Sequence[tuple[int, int, torch.dtype]]) -> None:
        base = arena.data_ptr()
        for slot, offset, _ in places:
            slots[slot] = base + offset


def entry_point(function: Any) -> Callable[[int], None]:
    """A function of a loaded library as an entry point that takes the table's address."""
    function.argtypes = [ctypes.c_void_p]
    function.restype = None
    return function
