"""Which nodes of a graph loops can compute, by the dtypes, layouts and devices of what they take and return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_codegen.ir.ops import COMPLEX_PARTS, why_not_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.registry import COMPLEX_LOWERINGS, name_of


def why_not_loops(lowering: Lowering, node: torch.fx.Node) -> str | None:
    """Why a node cannot be lowered to loops whatever its arguments hold, or None."""
    if not node.users and node.meta.get("may_raise"):
        return "nobody uses its result: it is called for what it may raise"
    name, is_complex = name_of(node.target), False
    if name not in LOWERINGS and name not in COMPLEX_LOWERINGS:
        return f"{node.target} has no lowering"
    main = lowering.device
    for n in (node, *node.all_input_nodes):
        known = lowering.examined.get(n)
        if known is None:
            known = lowering.examined[n] = _examine(n, lowering.dtypes)
        reason, devices, complex_too = known
        if reason is not None:
            return reason
        is_complex |= complex_too
        for device in devices:
            if main is not None and device != main:
                return "a tensor on another device"
            main = device
    if name not in (COMPLEX_LOWERINGS if is_complex else LOWERINGS):
        return f"{node.target} has no lowering for {'complex' if is_complex else 'real'} numbers"
    return None


def lowering_of(lowering: Lowering, node: torch.fx.Node) -> Callable[..., Any]:
    """The lowering of a node for which `why_not_loops` is None."""
    is_complex = any(lowering.examined[n][2] for n in (node, *node.all_input_nodes))
    return (COMPLEX_LOWERINGS if is_complex else LOWERINGS)[name_of(node.target)]


def _examine(node: torch.fx.Node, dtypes: frozenset[torch.dtype]) -> tuple[str | None, tuple[torch.device, ...], bool]:
    """Why loops cannot work on the tensors of a node's value, or None; where those are; whether one is complex.

    What a call returns stands in memory as it is; an input marked as conjugate does not.
    """
    val = node.meta.get("val")
    devices: dict[torch.device, None] = {}
    is_complex = False
    for v in val if isinstance(val, (list, tuple)) else (val,):
        if isinstance(v, torch.Tensor):
            if (reason := why_not_dtype(v.dtype, dtypes)) is not None:
                return reason, (), False
            if v.layout != torch.strided:
                return f"layout {v.layout}", (), False
            if v.is_neg() or (v.is_conj() and node.op != "call_function"):
                return "lazy conjugate or negative", (), False
            is_complex |= v.dtype in COMPLEX_PARTS
            devices[device_of(v)] = None
    return None, tuple(devices), is_complex


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor that no fake operator is running on."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def is_elsewhere(tensor: torch.Tensor, device: torch.device | None) -> bool:
    """Whether a tensor lies on another device than loops run on; no device means the only one there is."""
    return device is not None and device_of(tensor) != device


__all__ = ["device_of", "is_elsewhere", "lowering_of", "why_not_loops"]
