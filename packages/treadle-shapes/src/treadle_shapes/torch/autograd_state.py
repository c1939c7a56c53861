"""Keep the user's observers of autograd away from fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, autograd works on tensors without data, of which neither the user's saved-tensor hooks nor anomaly mode are to hear.

    Hooks would be called with fake tensors, and the search for NaNs would read their elements.
    """
    has_hooks = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    if has_hooks:
        torch._C._autograd._push_saved_tensors_default_hooks(_same, _same)
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    if anomaly:
        torch.set_anomaly_enabled(False)
    try:
        yield
    finally:
        if anomaly:
            torch.set_anomaly_enabled(True, check_nan)
        if has_hooks:
            torch._C._autograd._pop_saved_tensors_default_hooks()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
