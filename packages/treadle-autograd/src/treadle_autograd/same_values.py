"""Which nodes of two joint graphs of one program have the same values: the second one's forward part need not compute them again.

    first                           second: gradients of the first one's results
    %mm = x @ w                     %mm_1 = x @ w                       the same as %mm
    %tanh = tanh(%mm)               %tanh_1 = tanh(%mm_1)               the same as %tanh
                                    %mul = given_0 * (1 - %tanh_1**2)   the first graph has no such node

Nodes are the same if they call the same operator with the same arguments, from the inputs on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import expr_of

from .effects import changes_something, is_random
from .joint import JointTrace

_Numbers = dict[fx.Node, int]


class _NoKey(Exception):
    """A call or an argument that is compared with nothing."""


def same_values(first: JointTrace, second: JointTrace) -> dict[fx.Node, fx.Node]:
    """The nodes of `second` that have the value of a node of `first`, which is that one's key."""
    of_key: dict[Hashable, fx.Node] = {}
    numbers: _Numbers = {}
    for key, node in _with_keys(first, numbers):
        other = of_key.setdefault(key, node)
        numbers[node] = len(numbers) if other is node else numbers[other]
    found: dict[fx.Node, fx.Node] = {}
    of_second: _Numbers = {}
    for key, node in _with_keys(second, of_second):
        same = of_key.get(key)
        if same is not None and _are_alike(same, node):
            found[node] = same
            of_second[node] = numbers[same]
    return found


def _with_keys(joint: JointTrace, numbers: Mapping[fx.Node, int]) -> Iterator[tuple[Hashable, fx.Node]]:
    """The nodes that can be compared, each behind its key, in graph order. numbers: of the nodes so far, which the caller fills in."""
    inputs = joint.contract.inputs
    placeholders = 0
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if placeholders < len(inputs):
                yield ("input", inputs[placeholders]), node
            placeholders += 1
        elif node.op == "call_function" and not (is_random(node) or changes_something(node)):
            try:
                yield _key(node, numbers), node
            except _NoKey:
                continue


def _key(node: fx.Node, numbers: Mapping[fx.Node, int]) -> Hashable:
    kwargs = tuple((name, _argument(value, numbers)) for name, value in sorted(node.kwargs.items()))
    return node.target, _argument(node.args, numbers), kwargs


_CONSTANTS = (bool, int, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


def _argument(value: Any, numbers: Mapping[fx.Node, int]) -> Hashable:
    """The argument in a form in which equal ones are the same to the operator. Raises _NoKey where that is not known."""
    if isinstance(value, fx.Node):
        if value not in numbers:
            raise _NoKey
        return "node", numbers[value]
    if isinstance(value, (tuple, list)):
        return "items", tuple(_argument(item, numbers) for item in value)
    if isinstance(value, float):
        return "float", value.hex()  # tells -0.0 from 0.0
    if type(value) in _CONSTANTS:
        return type(value), value
    raise _NoKey


def _are_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether the fake values agree, as far as kernels see them. Symbols that only the run tells are others in every trace."""
    mine, theirs = one.meta.get("val"), other.meta.get("val")
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return type(mine) is type(theirs) and not isinstance(mine, torch.SymFloat)
    if mine.layout is not torch.strided or theirs.layout is not torch.strided:
        return False
    return _metadata(mine) == _metadata(theirs)


def _metadata(value: torch.Tensor) -> Any:
    numbers = [expr_of(n) if isinstance(n, torch.SymInt) else n for n in (*value.size(), *value.stride())]
    return value.dtype, value.device, value.is_conj(), value.is_neg(), value.dim(), numbers


__all__ = ["same_values"]
