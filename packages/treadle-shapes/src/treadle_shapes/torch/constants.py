"""Fake tensors of tensors that a program makes of numbers: `torch.tensor(2.0)`. Needs torch.

PyTorch's converter imports ``torch._dynamo.source`` for each real tensor (``FakeTensorConverter.from_real_tensor``, torch 2.11 to 2.13), to
name what it will not name here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConverter


class LightConverter(FakeTensorConverter):
    """Converts constants, whose element is known, without that import, and everything else as PyTorch does."""

    def from_real_tensor(
        self, fake_mode: Any, t: torch.Tensor, make_constant: bool = False, shape_env: Any = None, **options: Any
    ) -> FakeTensor:
        """Return a fake tensor of `fake_mode` like the real tensor `t`, which has memory of its own where `make_constant` is set."""
        if not make_constant or shape_env is not None or options or self._get_memo(t) is not None or not is_plain(t):
            return super().from_real_tensor(fake_mode, t, make_constant, shape_env, **options)
        fake = _fake_like(fake_mode, t, t)
        self.add_constant_storage_mapping(fake)
        return fake


def lift(mode: Any, tensor: Any) -> Any:
    """Kernel of ``lift_fresh`` and ``lift_fresh_copy`` of a real tensor, which `torch.tensor` has just made."""
    if type(tensor) is not torch.Tensor or not is_plain(tensor):
        return NotImplemented
    if not mode.may_turn_const(tensor):
        return _fake_like(mode, tensor, None)
    with torch._C._DisableTorchDispatch():
        own = tensor.clone()
    return mode.fake_tensor_converter.from_real_tensor(mode, own, make_constant=True)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether size, strides, dtype and device tell all that a fake tensor has."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_neg() or tensor.is_conj())
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._is_functional_tensor(tensor)
    )


def _fake_like(mode: Any, tensor: torch.Tensor, constant: torch.Tensor | None) -> FakeTensor:
    with torch._C._DisableTorchDispatch():
        memory = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, memory, tensor.device, constant=constant)


__all__ = ["LightConverter", "is_plain", "lift"]
