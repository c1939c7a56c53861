"""Which graphs a target can compile at all: those whose tensors it can address.

A kernel receives addresses. A tensor on another device has none that the kernel could use, and a tensor without memory
of its own (`torch._efficientzerotensor`, a functional wrapper) has none at all. Such a graph is refused before lowering.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._C import _functorch

from treadle_codegen.errors import UnsupportedDevice, UnsupportedTensor

_MAKES_NO_MEMORY = (torch.ops.aten._efficientzerotensor.default,)


def require_support(gm: fx.GraphModule, example_inputs: Sequence[Any], devices: Sequence[str], target: str) -> None:
    """Raise UnsupportedDevice or UnsupportedTensor when the graph holds a tensor that `target` cannot address.

    `devices` are the device types that the target takes. Every tensor counts: constants, each node's result, and the
    example inputs themselves, because a fake tensor does not tell that the real one has no memory.
    """
    for tensor in example_inputs:
        if isinstance(tensor, torch.Tensor):
            _require_device(tensor, devices, target)
            _require_memory(tensor, target)
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = _attribute(gm, str(node.target))
            if isinstance(value, torch.Tensor):
                _require_device(value, devices, target)
                _require_memory(value, target)
        elif node.target in _MAKES_NO_MEMORY:
            raise UnsupportedTensor(f"{node.target} makes a tensor of zeros without memory", target)
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                _require_device(tensor, devices, target)


def _require_device(tensor: torch.Tensor, devices: Sequence[str], target: str) -> None:
    if tensor.device.type not in devices:
        raise UnsupportedDevice(tensor.device.type, target, devices)


def _require_memory(tensor: torch.Tensor, target: str) -> None:
    if (reason := why_not_memory(tensor)) is not None:
        raise UnsupportedTensor(reason, target)


def why_not_memory(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no memory that a kernel or an operator's output could use, or None."""
    if tensor._is_zerotensor():
        return "it is a tensor of zeros without memory (torch._efficientzerotensor)"
    if torch._is_functional_tensor(tensor):
        return "it is a wrapper made by functionalisation"
    if _functorch.is_functorch_wrapped_tensor(tensor):
        return "it is a wrapper made by torch.func"
    return None


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for name in path.split("."):
        value = getattr(value, name)
    return value
