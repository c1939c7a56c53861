"""Which earlier tensor has the same elements as a computed one, under assumptions on sizes.

    torch.where(arange(q)[:, None] >= arange(k)[None, :], bias, -inf)     # q == k == 1: the condition is [[True]], so this is bias

The search passes nodes that return an argument unchanged. A condition that is made of sizes alone is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes import ShapeEnv
from treadle_shapes.expr import Eq
from treadle_shapes.torch import expr_of
from treadle_shapes.torch import operator as operator_record

_LARGEST = 64  # the greatest number that conditions are computed with


class _Unknown(Exception):
    """The node does not follow from sizes alone, or is too large to compute."""


class Elements:
    """Answers under `assumptions`, besides what `env` knows."""

    def __init__(self, env: ShapeEnv, assumptions: Sequence[Any]):
        self.env = env
        self.assumptions = assumptions

    def origin(self, node: fx.Node) -> fx.Node:
        """The earliest node with the same elements, sizes and dtype."""
        while (before := self._before(node)) is not None and self._is_alike(node, before):
            node = before
        return node

    def _before(self, node: fx.Node) -> fx.Node | None:
        """The argument that a node returns unchanged, or None."""
        known = operator_record(node.target)
        if known is None:
            return None
        if known.keeps_index:
            found: Any = node.args[0]
        elif known.family == "where" and len(node.args) == 3 and not node.kwargs:
            condition, *choices = (
                node.args if node.target is torch.where else (node.args[1], node.args[0], node.args[2])
            )
            truth = self._truth(condition)
            found = None if truth is None else choices[0 if truth else 1]
        else:
            return None
        return (
            found if isinstance(found, fx.Node) and isinstance(found.meta.get("example_value"), torch.Tensor) else None
        )

    def _is_alike(self, node: fx.Node, other: fx.Node) -> bool:
        one, two = node.meta["example_value"], other.meta["example_value"]
        return one.dtype == two.dtype and one.dim() == two.dim() and all(map(self._is_equal, one.shape, two.shape))

    def _is_equal(self, a: Any, b: Any) -> bool:
        return self.env.prove_under(self.assumptions, Eq(expr_of(a), expr_of(b))) is True

    def _truth(self, condition: Any) -> bool | None:
        """The truth of a condition if it is the same for all elements and known, else None."""
        try:
            found = self._value(condition)
        except _Unknown:
            return None
        if not isinstance(found, torch.Tensor) or found.dtype is not torch.bool or not found.numel():
            return None
        return True if found.all() else False if not found.any() else None

    def _value(self, arg: Any) -> Any:
        """The value of a node that is computed from sizes. Raises _Unknown."""
        if isinstance(arg, (tuple, list)):
            return type(arg)(map(self._value, arg))
        if isinstance(arg, slice):
            return slice(*map(self._value, (arg.start, arg.stop, arg.step)))
        if not isinstance(arg, fx.Node):
            return arg
        example = arg.meta.get("example_value")
        if isinstance(example, torch.SymInt):
            return self._number(example)
        known = operator_record(arg.target)
        if known is None or not known.is_speculatable:
            raise _Unknown
        args = [self._value(item) for item in arg.args]
        kwargs = {name: self._value(item) for name, item in arg.kwargs.items() if name != "device"}
        if isinstance(arg.target, str):
            found = getattr(args[0], arg.target)(*args[1:], **kwargs)
        else:
            found = arg.target(*args, **kwargs)  # type: ignore[operator]
        if found.numel() > _LARGEST**2:
            raise _Unknown
        return found

    def _number(self, size: torch.SymInt) -> int:
        found = self.env.simplify_under(self.assumptions, expr_of(size))
        if not isinstance(found, int) or abs(found) > _LARGEST:
            raise _Unknown
        return found
