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
from torch._subclasses.fake_tensor import FakeTensor

from treadle_codegen.errors import UnsupportedDevice, UnsupportedTensor
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.lower.loop_checks import device_of
from treadle_codegen.schedule.access import step_reads, step_writes

_MAKES_NO_MEMORY = (torch.ops.aten._efficientzerotensor.default,)


def tensors_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Every tensor of a graph: inputs themselves (a fake tensor does not tell that the real one has no memory), constants, results."""
    found = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            found += _tensors_in(_attribute(gm, str(node.target)))
        found += _tensors_in(node.meta.get("val"))
    return found


def _tensors_in(value: Any) -> list[torch.Tensor]:
    items = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def main_device(tensors: Sequence[torch.Tensor], devices: Sequence[str] = ()) -> torch.device | None:
    """The device that a graph with these tensors works on: that of the first one on one of `devices`, or by default on another than
    the CPU.

    A graph with tensors on the CPU only works there; None for a graph without tensors.
    """
    for device in dict.fromkeys(map(device_of, tensors)):
        if device.type in devices or (not devices and device.type != "cpu"):
            return device
    return tensors[0].device if tensors and not devices else None


def require_support(
    gm: fx.GraphModule,
    tensors: Sequence[torch.Tensor],
    devices: Sequence[str],
    target: str,
    operator_devices: Sequence[str] = (),
) -> None:
    """Raise UnsupportedDevice or UnsupportedTensor when the graph, whose tensors these are, holds one that `target` cannot address.

    `devices` are the device types that the target takes, `operator_devices` those whose tensors it leaves to operators.
    """
    for node in gm.graph.nodes:
        if node.target in _MAKES_NO_MEMORY:
            raise UnsupportedTensor(f"{node.target} makes a tensor of zeros without memory", target)
    for device in dict.fromkeys(map(device_of, tensors)):
        if device.type not in devices and device.type not in operator_devices:
            raise UnsupportedDevice(device.type, target, devices)
    for tensor in tensors:
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
