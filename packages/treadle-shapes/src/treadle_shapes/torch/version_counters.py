"""The counters by which autograd knows that elements have been written to since it saved a tensor. Needs torch.

Views and detached tensors count with the tensor whose memory they share; `x.data` has a counter of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def share_version_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a write to one of two tensors counts for the other, too. Neither is an inference tensor: those count nothing."""
    version = one._version
    with _version_set(other, other._version + 1):
        return one._version == version + 1


@contextmanager
def _version_set(tensor: torch.Tensor, version: int) -> Iterator[None]:
    before = tensor._version
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
    try:
        yield
    finally:
        torch._C._autograd._unsafe_set_version_counter((tensor,), (before,))


__all__ = ["share_version_counter"]
