"""How the host calls the Triton target: the table of the C++ target's ABI, with addresses of the device, and memory from
PyTorch's caching allocator."""

from __future__ import annotations

import functools

import torch

from treadle_codegen.targets.cpp.entries import PointerTable
from treadle_codegen.targets.target import Allocation

ENTRY_ABI = PointerTable()


@functools.lru_cache(maxsize=64)
def allocation(device: torch.device) -> Allocation:
    """Memory of one device, whichever is current."""
    return Allocation(
        functools.partial(torch.empty_strided, device=device), functools.partial(torch.empty, device=device)
    )
