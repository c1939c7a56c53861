"""Tells Treadle's fake modes and symbolic numbers from those of others in the same process. Needs torch.

Treadle's changes to PyTorch act for these only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.errors import UsageError
from treadle_shapes.sym_node import SymNode

if TYPE_CHECKING:
    from treadle_shapes.env import ShapeEnv

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class TreadleMode:
    """Marks the fake modes of `fake_mode`."""


class TreadleShapeEnv:
    """Marks the shape environments of `fake_shape_env`."""


def runs_in_our_mode(tensor: Any) -> bool:
    """Whether a call with this tensor belongs to a fake mode of Treadle: the tensor's own mode, or the active mode if it has none."""
    mode = getattr(tensor, "fake_mode", None) or torch._C._get_dispatch_mode(_FAKE)
    return isinstance(mode, TreadleMode)


def env_of(value: Any) -> ShapeEnv | None:
    """Return the ShapeEnv of a symbolic number, or None for plain numbers and numbers of another shape engine."""
    node = getattr(value, "node", None)
    return node.env if isinstance(node, SymNode) else None


def raw_expr(value: Any) -> Any:
    """Return the expression under a SymInt, SymFloat or SymBool as it was made. Anything else stays as it is.

    No facts are put in; they would turn the condition of an assert into True. Raises UsageError for a number of another shape engine.
    """
    if not isinstance(value, _SYMBOLIC):
        return value
    node: Any = value.node
    if not isinstance(node, SymNode):
        raise UsageError(f"raw_expr: {value} belongs to another symbolic shape engine")
    return node.value


__all__ = ["TreadleMode", "TreadleShapeEnv", "env_of", "raw_expr", "runs_in_our_mode"]
