"""Joint graphs of small functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from treadle_autograd.joint import JointTrace, trace_joint


def joint_of(function: Callable[..., Any], *inputs: torch.Tensor) -> JointTrace:
    joint = trace_joint(fx.symbolic_trace(function), inputs, {})
    assert joint is not None
    return joint


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)
