"""Graphs computed as eager's kernels compute: without a record, and in grad mode.

Some kernels look at grad mode to decide whether they return what only their backward pass needs (oneDNN's LSTM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def run_unrecorded(function: Callable[..., Sequence[Any]], arguments: Sequence[Any]) -> Sequence[Any]:
    """`function(*arguments)` below autograd."""
    grad = torch.is_grad_enabled()
    with torch._C._AutoDispatchBelowADInplaceOrView():
        torch._C._set_grad_enabled(True)  # a context manager of PyTorch's takes as long as an operator
        try:
            return function(*arguments)
        finally:
            torch._C._set_grad_enabled(grad)
