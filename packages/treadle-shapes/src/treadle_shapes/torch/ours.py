"""Telling Treadle's fake modes and symbolic numbers from those of others in the same process. Needs torch.

Whatever Treadle changes inside PyTorch acts for these only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.sym_node import SymNode

if TYPE_CHECKING:
    from treadle_shapes.env import ShapeEnv

_FAKE = torch._C._TorchDispatchModeKey.FAKE


class TreadleMode:
    """Marks the fake modes of `fake_mode`."""


class TreadleShapeEnv:
    """Marks the shape environments of `fake_shape_env`."""


def runs_in_our_mode(tensor: Any) -> bool:
    """Whether a call with this tensor belongs to a fake mode of Treadle: the tensor is of one, or one is active."""
    mode = getattr(tensor, "fake_mode", None) or torch._C._get_dispatch_mode(_FAKE)
    return isinstance(mode, TreadleMode)


def env_of(value: Any) -> ShapeEnv | None:
    """The ShapeEnv a symbolic number belongs to, None for plain numbers and numbers of another shape engine."""
    node = getattr(value, "node", None)
    return node.env if isinstance(node, SymNode) else None


__all__ = ["TreadleMode", "TreadleShapeEnv", "env_of", "runs_in_our_mode"]
