"""Where autograd sees no operator: in kernels of custom operators, in a `__torch_dispatch__` that PyTorch calls.

Tensors that require gradients compute without a record there, in grad mode too, and what autograd refuses elsewhere goes through. A trace
follows what requires none.
"""

from __future__ import annotations

import torch

from .errors import Unsupported

_KEYS = torch._C.DispatchKey  # type: ignore[attr-defined]
AUTOGRAD, VIEWS = _KEYS.AutogradFunctionality, _KEYS.ADInplaceOrView
"""The keys of autograd, and of what keeps account of views and writes."""

is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded  # type: ignore[attr-defined]


def is_below_autograd() -> bool:
    """Whether the code at hand runs in an operator, past autograd."""
    return is_excluded(VIEWS) or (is_excluded(AUTOGRAD) and not torch.is_inference_mode_enabled())


def refuse_below_autograd(what: str) -> None:
    """Raises Unsupported there; what: requires gradients."""
    if is_below_autograd():
        raise Unsupported("tensor-kind", f"{what}, which requires gradients, below autograd")
