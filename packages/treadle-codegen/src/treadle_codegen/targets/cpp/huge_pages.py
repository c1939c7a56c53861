"""Asks Linux for pages of 2 MiB under large tensors that have just been allocated.

Memory that is new to a process comes in pages of 4 KiB, each with a page fault when it is first written to: 64 MiB take 16,384 of them,
several times as long as the writing. malloc returns blocks beyond 32 MiB to the system as soon as they are free
(mallopt(3), M_MMAP_THRESHOLD), so that each call of a function with a large result pays for them again. Where the kernel gives huge pages
on request ("[madvise]" in /sys/kernel/mm/transparent_hugepage/enabled), 32 faults are enough.

A virtual machine whose balloon reports free pages gives blocks of 2 MiB back to its host once they have lain free for a while, and gets
them back page by page: 256 MiB take 565 to 1,270 ms then as huge pages and 275 ms as small ones, where 31 ms are enough if they were
in use a moment ago. The larger a result, the longer the call and the likelier that: there, very large ones stay on small pages.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from treadle_codegen.targets.target import LARGE

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_BALLOONS = Path("/sys/bus/virtio/drivers/virtio_balloon")
# VIRTIO_BALLOON_F_REPORTING, include/uapi/linux/virtio_balloon.h; `features` tells the bits from the first to the last.
_REPORTS_FREE_PAGES = 5
_MOST_WHERE_REPORTED = 128 << 20  # bytes
_PAGE = 4096
_MADV_HUGEPAGE = 14  # include/uapi/asm-generic/mman-common.h

OnHugePages = Callable[[torch.Tensor], torch.Tensor]


@functools.cache
def on_huge_pages() -> OnHugePages | None:
    """A function that asks for huge pages under a tensor of at least LARGE bytes, and returns the tensor; None where nobody gives them."""
    most = _MOST_WHERE_REPORTED if free_pages_are_reported() else None
    return _asking(most) if given_on_request() else None


def given_on_request(setting: Path = _SETTING) -> bool:
    """Whether the kernel gives huge pages to those who ask, and to nobody else."""
    try:
        return "[madvise]" in setting.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


def free_pages_are_reported(balloons: Path = _BALLOONS) -> bool:
    """Whether this is a virtual machine that gives free pages back to its host."""
    try:
        features = [path.read_text(encoding="ascii") for path in balloons.glob("virtio*/features")]
    except (OSError, UnicodeDecodeError):
        return False
    return any(bits[_REPORTS_FREE_PAGES : _REPORTS_FREE_PAGES + 1] == "1" for bits in features)


def _asking(most: int | None = None) -> OnHugePages | None:
    """`most`: bytes beyond which it does not ask."""
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def ask(tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.nbytes
        if size >= LARGE and (most is None or size <= most):
            address = tensor.data_ptr()
            first = -(-address // _PAGE) * _PAGE
            madvise(first, (address + size) // _PAGE * _PAGE - first, _MADV_HUGEPAGE)  # a refusal changes nothing
        return tensor

    return ask
