"""Replacements of PyTorch functions that need a decision about symbolic numbers. They need none for Treadle's numbers. Needs torch.

For plain numbers and numbers of other shape engines they return what PyTorch's functions return. `patches` installs them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch._subclasses._fake_tensor_utils import _DeconstructedSymNode

from treadle_shapes.floats import quotient_of_c
from treadle_shapes.sym_node import SymNode, strides_ascend
from treadle_shapes.torch.ours import env_of, raw_expr

_CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def ask_layouts_without_guards(original: Callable[..., bool]) -> Callable[..., bool]:
    """Replace `are_strides_like_channels_last_or_false`, which the fake tensor cache calls for every tensor.

    The answer for Treadle's sizes is size-oblivious. PyTorch's function asks one of its questions without a default, which adds a guard.
    """

    def are_strides_like_channels_last_or_false(shape: Any, strides: Any) -> bool:
        order = _CHANNELS_LAST.get(len(shape))
        env = None if order is None else next((e for n in (*shape, *strides) if (e := env_of(n)) is not None), None)
        if order is None or env is None:
            return original(shape, strides)
        sizes, steps = ([raw_expr(n) for n in numbers] for numbers in (shape, strides))
        return env.guard_or_false(strides_ascend(order, sizes, steps))

    return are_strides_like_channels_last_or_false


def read_metadata_without_records(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `extract_tensor_metadata`, by which the fake tensor cache tells its entries apart, for symbolic tensors.

    An environment keeps its answers for good: the tensor would count as having no layout of its own when a kernel asks later, although the
    program has stated in between that no size is 0.
    """

    def extract_tensor_metadata(tensor: Any) -> Any:
        env = None
        if tensor._has_symbolic_sizes_strides:
            env = next((e for n in (*tensor.shape, *tensor.stride()) if (e := env_of(n)) is not None), None)
        with nullcontext() if env is None else env.suppress_guards():
            return original(tensor)

    return extract_tensor_metadata


def round_down(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `div_rtn`, which rounds a pooling's extent down. Before torch 2.13 it asks whether the remainder is 0, which adds a guard."""

    def div_rtn(x: Any, y: Any) -> Any:
        return original(x, y) if env_of(x) is None and env_of(y) is None else x // y

    return div_rtn


def divide_constants(original: Callable[[Any, Any], Any], is_divisor: bool) -> Callable[[Any, Any], Any]:
    """Replace `SymInt.__truediv__` or `__rtruediv__`, which look for the quotient with a float among the methods of a SymFloat.

    A size of Treadle that has been decided is a constant, which `torch.sym_float` turns into a plain float. Who still divides a SymInt then
    is a decomposition, in the place of C++ code.
    """

    @functools.wraps(original)
    def divide(self: Any, other: Any) -> Any:
        node = self.node
        if not (isinstance(other, float) and isinstance(node, SymNode) and node.is_constant()):
            return original(self, other)
        known = float(node.value)
        return quotient_of_c(other, known) if is_divisor else quotient_of_c(known, other)

    return divide


def general_power(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the decomposition of `pow`. Before torch 2.13 it asks whether the exponent or base is 1, 2 or 0.5, for a short cut.

    Dtypes and broadcasting follow torch's own references.
    """
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
    """The entry of the fake tensor cache for a symbolic output: Treadle's own node, unchanged."""

    __slots__ = ("node",)

    def __init__(self, node: SymNode) -> None:
        object.__setattr__(self, "node", node)

    def extract(self, shape_env: Any) -> Any:
        return self.node


def keep_our_nodes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `from_node`, which makes the cache entry of a symbolic number. PyTorch's rebuilds every node for its own ShapeEnv."""

    def from_node(node: Any) -> _DeconstructedSymNode:
        return KeptNode(node) if isinstance(node, SymNode) else original(node)

    return from_node


__all__ = [
    "ask_layouts_without_guards",
    "general_power",
    "keep_our_nodes",
    "read_metadata_without_records",
    "round_down",
]
