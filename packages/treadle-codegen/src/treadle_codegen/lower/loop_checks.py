"""Which nodes of a graph loops can compute, by the dtypes, layouts and devices of what they take and return."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_codegen.ir.ops import why_not_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.registry import name_of


def why_not_loops(lowering: Lowering, node: torch.fx.Node) -> str | None:
    """Why a node cannot be lowered to loops whatever its arguments hold, or None."""
    if not node.users and node.meta.get("may_raise"):
        return "nobody uses its result: it is called for what it may raise"
    if name_of(node.target) not in LOWERINGS:
        return f"{node.target} has no lowering"
    main = lowering.device
    for n in (node, *node.all_input_nodes):
        known = lowering.examined.get(n)
        if known is None:
            known = lowering.examined[n] = _examine(n.meta.get("val"), lowering.dtypes)
        reason, devices = known
        if reason is not None:
            return reason
        for device in devices:
            if main is not None and device != main:
                return "a tensor on another device"
            main = device
    return None


def _examine(val: Any, dtypes: frozenset[torch.dtype]) -> tuple[str | None, tuple[torch.device, ...]]:
    """Why loops cannot work on the tensors of a node's value, or None; and where those are."""
    devices: dict[torch.device, None] = {}
    for v in val if isinstance(val, (list, tuple)) else (val,):
        if isinstance(v, torch.Tensor):
            if (reason := why_not_dtype(v.dtype, dtypes)) is not None:
                return reason, ()
            if v.layout != torch.strided:
                return f"layout {v.layout}", ()
            if v.is_conj() or v.is_neg():
                return "lazy conjugate or negative", ()
            devices[device_of(v)] = None
    return None, tuple(devices)


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor that no fake operator is running on."""
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def is_elsewhere(tensor: torch.Tensor, device: torch.device | None) -> bool:
    """Whether a tensor lies on another device than loops run on; no device means the only one there is."""
    return device is not None and device_of(tensor) != device


__all__ = ["device_of", "is_elsewhere", "why_not_loops"]
