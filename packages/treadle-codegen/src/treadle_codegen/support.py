"""Which graphs a target can compile at all: those whose tensors it can address.

A kernel receives addresses. A tensor on another device has none that the kernel could use, and a tensor without memory
of its own (`torch._efficientzerotensor`, a functional wrapper) has none at all. Such a graph is refused before lowering.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._C import _functorch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_codegen.errors import UnsupportedDevice, UnsupportedTensor
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.schedule.access import step_reads, step_writes

_MAKES_NO_MEMORY = (torch.ops.aten._efficientzerotensor.default,)


def tensors_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Every tensor of a graph: inputs themselves (a fake tensor does not tell that the real one has no memory), constants, results."""
    for value in example_inputs:
        if isinstance(value, torch.Tensor):
            yield value
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value = _attribute(gm, str(node.target))
            if isinstance(value, torch.Tensor):
                yield value
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor


def main_device(gm: fx.GraphModule, example_inputs: Sequence[Any], devices: Sequence[str] = ()) -> torch.device | None:
    """The device that a graph works on: that of the first tensor on one of `devices`, or by default on another than the CPU.

    A graph with tensors on the CPU only works there; None for a graph without tensors.
    """
    found: torch.device | None = None
    for tensor in tensors_of(gm, example_inputs):
        if tensor.device.type in devices or (not devices and tensor.device.type != "cpu"):
            return tensor.device
        found = found or tensor.device
    return None if devices else found


def require_support(
    gm: fx.GraphModule, example_inputs: Sequence[Any], devices: Sequence[str], target: str, beside: Sequence[str] = ()
) -> None:
    """Raise UnsupportedDevice or UnsupportedTensor when the graph holds a tensor that `target` cannot address.

    `devices` are the device types that the target takes, `beside` those whose tensors it leaves to operators.
    """
    for node in gm.graph.nodes:
        if node.target in _MAKES_NO_MEMORY:
            raise UnsupportedTensor(f"{node.target} makes a tensor of zeros without memory", target)
    for tensor in tensors_of(gm, example_inputs):
        if tensor.device.type not in devices and tensor.device.type not in beside:
            raise UnsupportedDevice(tensor.device.type, target, devices)
        if not isinstance(tensor, FakeTensor):
            _require_memory(tensor, target)


def require_reach(program: Program, target: str) -> None:
    """Raise UnsupportedTensor if a loop would touch memory on another device than the loops'."""
    for step in program.steps if program.foreign else ():
        if isinstance(step, Loop) and (names := (step_reads(step) | step_writes(step)) & program.foreign):
            raise UnsupportedTensor(f"{', '.join(sorted(names))} lies on another device than the rest", target)


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
