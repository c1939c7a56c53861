"""Give what an in-place operator writes to the strides that it had: the functional operator in its place may choose others.

y = x.t()                   %y = aten.t(%x)                                 strides (1, 4)
y.tril_()         ==>       %tril = aten.tril(%y)                           strides (4, 1)
                            %laid = aten.t(aten.clone(aten.t(%tril)))       strides (1, 4), the new value of y

x.tril_()         ==>       %tril = aten.tril(%x)                           strides (4, 1); those of the input x have gaps: (8, 2)
                            %laid = aten.copy(%x, %tril)                    strides (8, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treadle_shapes.torch import unwrapped

from .layouts import dense_order, same_layout, shares_elements
from .lost_histories import times_written

aten = torch.ops.aten


@dataclass(frozen=True)
class KeptLayout:
    """Sizes and strides of a functional tensor in front of a call that may write to it, its value, and how often it has been written to
    by then."""

    tensor: torch.Tensor
    value: torch.Tensor
    size: Sequence[int]
    strides: Sequence[int]
    writes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> KeptLayout | None:
        """None for what is no functional tensor, or is sparse."""
        tensor = unwrapped(tensor)
        if not torch._is_functional_tensor(tensor) or tensor.layout is not torch.strided:
            return None
        value = torch._from_functional_tensor(tensor)
        return cls(tensor, value, tensor.size(), tensor.stride(), times_written(tensor))

    def restore(self) -> None:
        """After the call: let the new value have the strides of the old one, unless its elements share memory."""
        tensor = self.tensor
        if times_written(tensor) == self.writes or tensor.size() != self.size:
            return
        if same_layout((self.size, self.strides), (tensor.size(), tensor.stride())):
            return
        if shares_elements(self.value):
            return
        order, value = dense_order(self.size, self.strides), torch._from_functional_tensor(tensor)
        laid = aten.copy.default(self.value, value) if order is None else _laid_out(value, order)
        torch._functionalize_replace(tensor, laid)
        torch._functionalize_commit_update(tensor)
        torch._sync(tensor)


def _laid_out(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """A copy of `value` whose dimensions follow each other in memory in this order. It is recorded."""
    copy = aten.clone.default(aten.permute.default(value, order), memory_format=torch.contiguous_format)
    return aten.permute.default(copy, [order.index(d) for d in range(len(order))])
