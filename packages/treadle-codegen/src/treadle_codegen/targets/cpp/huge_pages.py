"""Asks Linux for pages of 2 MiB under large tensors that have just been allocated.

Memory that is new to a process comes in pages of 4 KiB, each with a page fault when it is first written to: 64 MiB take 16,384 of them,
several times as long as the writing. malloc returns blocks beyond 32 MiB to the system as soon as they are free
(mallopt(3), M_MMAP_THRESHOLD), so that each call of a function with a large result pays for them again. Where the kernel gives huge pages
on request ("[madvise]" in /sys/kernel/mm/transparent_hugepage/enabled), 32 faults are enough.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from treadle_codegen.targets.target import LARGE

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PAGE = 4096
_MADV_HUGEPAGE = 14  # include/uapi/asm-generic/mman-common.h

OnHugePages = Callable[[torch.Tensor], torch.Tensor]


@functools.cache
def on_huge_pages() -> OnHugePages | None:
    """A function that asks for huge pages under a tensor of at least LARGE bytes, and returns the tensor; None where nobody gives them."""
    return _asking() if given_on_request() else None


def given_on_request(setting: Path = _SETTING) -> bool:
    """Whether the kernel gives huge pages to those who ask, and to nobody else."""
    try:
        return "[madvise]" in setting.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


def _asking() -> OnHugePages | None:
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def ask(tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.nbytes
        if size >= LARGE:
            address = tensor.data_ptr()
            first = -(-address // _PAGE) * _PAGE
            madvise(first, (address + size) // _PAGE * _PAGE - first, _MADV_HUGEPAGE)  # a refusal changes nothing
        return tensor

    return ask
