"""Makes FakeTensors at the cost of the tensor itself. Needs torch.

    made_fake(mode, torch.empty_strided((2, 3), (3, 1), device="meta"), torch.device("cpu"))

The constructor of torch 2.13 takes 12 us, most of it for memos that hold nothing: five descriptors with three attributes each. Here a new
tensor gets the attributes of one that the constructor has made for the same mode, but for memos that is what the constructor would set.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorConfig

_CPU = torch.device("cpu")
_EMPTY = (type(None), bool)


def made_fake(mode: Any, elem: torch.Tensor, device: torch.device) -> FakeTensor:
    """``FakeTensor(mode, elem, device)``, which has the sizes, strides and memory of `elem`, a tensor on the device "meta"."""
    if device != _CPU or FakeTensorConfig.debug:  # the constructor initialises other devices
        return FakeTensor(mode, elem, device)
    attributes = mode.__dict__.get("_treadle_attributes")
    if attributes is None:
        made = FakeTensor(mode, elem, device)
        mode._treadle_attributes = _constant_attributes(made)
        return made
    if not attributes:
        return FakeTensor(mode, elem, device)
    made = torch.Tensor._make_subclass(  # type: ignore[attr-defined]
        FakeTensor, elem, elem.requires_grad, dispatch_device=True, device_for_backend_keys=device
    )
    if mode._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
    else:
        torch._C._set_throw_on_mutable_data_ptr(made)
    vars(made).update(attributes, fake_mode=mode)
    return made  # type: ignore[no-any-return]


def _constant_attributes(made: FakeTensor) -> dict[str, Any]:
    """The attributes that every tensor of a mode on the CPU has at first, the mode aside; empty where a release sets others."""
    attributes = dict(vars(made))
    del attributes["fake_mode"]  # a mode that refers to itself waits for the garbage collector
    rest = [value for value in attributes.values() if value != _CPU]
    return attributes if all(isinstance(value, _EMPTY) for value in rest) else {}


__all__ = ["made_fake"]
