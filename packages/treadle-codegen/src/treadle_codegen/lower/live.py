"""Which values of the graph are still needed behind a node, and what they read: memory may be written over when nobody does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from treadle_codegen.ir.loops import load_of
from treadle_codegen.lower.nest import record_nest
from treadle_codegen.lower.tensor_expr import TensorExpr


class LiveValues:
    """The values of the nodes lowered so far (`values`, which grows), without those that no later node uses."""

    def __init__(self, values: Mapping[torch.fx.Node, Any]) -> None:
        self._values = values
        self._known: dict[torch.fx.Node, Any] = {}
        self._seen = 0

    def behind(self, node: torch.fx.Node) -> Iterator[TensorExpr]:
        """The tensors that nodes behind `node` use."""
        for other in list(self._values)[self._seen :]:
            self._known[other] = self._values[other]
        self._seen = len(self._values)
        self._known = {other: v for other, v in self._known.items() if any(node < user for user in other.users)}
        for value in self._known.values():
            for x in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(x, TensorExpr):
                    yield x


def buffers_read(x: TensorExpr) -> frozenset[str]:
    """The buffers that computing `x` loads from. `TensorExpr.reads` may be out of date: what it is made of has been stored since."""
    if x.storage is not None:
        return frozenset((x.storage.buffer,))
    nest = record_nest(x.shape, x.shape, lambda o, index, _: x.element(o, index), {})
    return (
        frozenset()
        if nest is None
        else frozenset(load[0] for load in map(load_of, nest.builder.body) if load is not None)
    )
