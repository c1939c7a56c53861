"""Functions of PyTorch that ask symbolic numbers for a decision, without that question for Treadle's numbers. Needs torch.

For plain numbers and for those of other shape engines each gives what PyTorch's own gives. `patches` enters them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses._fake_tensor_utils import _DeconstructedSymNode

from treadle_shapes.sym_node import SymNode, strides_ascend
from treadle_shapes.torch.ours import env_of

_CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def ask_layouts_without_guards(original: Callable[..., bool]) -> Callable[..., bool]:
    """`are_strides_like_channels_last_or_false`, which fake tensors ask for the layout of every tensor they note: whether strides are
    channels-last differs at sizes of 1 only, and PyTorch's function asks one of its questions without a default."""

    def are_strides_like_channels_last_or_false(shape: Any, strides: Any) -> bool:
        order = _CHANNELS_LAST.get(len(shape))
        env = None if order is None else next((e for n in (*shape, *strides) if (e := env_of(n)) is not None), None)
        if order is None or env is None:
            return original(shape, strides)
        sizes, steps = (
            [n.node.value if isinstance(n, torch.SymInt) else n for n in numbers] for numbers in (shape, strides)
        )
        return env.guard_or_false(strides_ascend(order, sizes, steps))

    return are_strides_like_channels_last_or_false


def round_down(original: Callable[..., Any]) -> Callable[..., Any]:
    """The division that rounds a pooling's extent down; torch before 2.13 asks whether the remainder is 0, one guard for every size."""

    def div_rtn(x: Any, y: Any) -> Any:
        return original(x, y) if env_of(x) is None and env_of(y) is None else x // y

    return div_rtn


def general_power(original: Callable[..., Any]) -> Callable[..., Any]:
    """`pow`, which torch before 2.13 asks whether the exponent or base is 1, 2 or 0.5, to take a short cut. Dtypes and broadcasting are
    those of torch's own references."""
    from torch import _prims, _refs
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

    @_refs._make_elementwise_binary_reference(
        type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.BOOL_TO_LONG, aten_op=None, name="pow"
    )
    def general(a: Any, b: Any) -> Any:
        return _prims.pow(a, b)

    def power(a: Any, b: Any, *, out: Any = None) -> Any:
        is_ours = env_of(a) is not None or env_of(b) is not None
        chosen: Any = general if is_ours else original
        return chosen(a, b, out=out)

    return power


class KeptNode(_DeconstructedSymNode):
    """What the fake tensor cache stores for a symbolic output: our own node, unchanged."""

    __slots__ = ("node",)

    def __init__(self, node: SymNode) -> None:
        object.__setattr__(self, "node", node)

    def extract(self, shape_env: Any) -> Any:
        return self.node


def keep_our_nodes(original: Callable[..., Any]) -> Callable[..., Any]:
    """What gives a symbolic number the form that the fake tensor cache notes. PyTorch's rebuilds every node as one of its own ShapeEnv."""

    def from_node(node: Any) -> _DeconstructedSymNode:
        return KeptNode(node) if isinstance(node, SymNode) else original(node)

    return from_node


__all__ = ["ask_layouts_without_guards", "general_power", "keep_our_nodes", "round_down"]
