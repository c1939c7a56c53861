"""How the host calls the Triton target: the table of the C++ target's ABI, with addresses of the device, and memory from
PyTorch's caching allocator, taken for each call, because the allocator knows which stream may use it next."""

from __future__ import annotations

import functools

import torch

from treadle_codegen.targets.cpp.entries import PointerTable
from treadle_codegen.targets.target import Allocation

ENTRY_ABI = PointerTable()


@functools.lru_cache(maxsize=64)
def allocation(device: torch.device) -> Allocation:
    """Memory of one device, whichever is current. On the CPU, where Triton's interpreter runs, workspaces keep their memory."""
    return Allocation(
        functools.partial(torch.empty_strided, device=device),
        functools.partial(torch.empty, device=device),
        _unowned if device.type == "cuda" else None,
    )


class _Bytes:
    """Bytes of a device for `torch.as_tensor` (Numba's CUDA array interface, version 3)."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def _unowned(memory: torch.Tensor) -> torch.Tensor:
    size = memory.numel()
    return torch.as_tensor(_Bytes(memory.data_ptr(), size), device=memory.device) if size else memory
