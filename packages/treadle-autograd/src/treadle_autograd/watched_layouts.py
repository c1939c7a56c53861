"""Whether tensors that are written to keep the sizes, strides and offsets that they had, as they do in eager.

    y = x.t()                   %y = aten.t(%x)                     strides (1, 4)
    y.add_(1)          ==>      %add = aten.add(%y, 1)              strides (1, 4): what follows is laid out as in eager
    y.tril_()                   %tril = aten.tril(%add)             strides (4, 1): it may not be

A functional run has eager's layouts as long as every value that takes another one's place has its layout: all calls are the same, on
arguments with the same metadata. Only where one moves must the program run again to tell eager's layouts (`expected_metadata`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .layouts import shares_elements, tensors_in
from .lost_histories import times_written


class _Seen(NamedTuple):
    """A tensor, which keeps its identity from being another's, and its geometry when it was seen first."""

    tensor: torch.Tensor
    geometry: Any


class WatchedLayouts:
    """The tensors of a functional run. moved: why layouts may differ from eager's; None while they do not."""

    def __init__(self) -> None:
        self.moved: str | None = None
        self._seen: dict[int, _Seen] = {}

    def before_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[torch.Tensor, int]]:
        """Note the arguments. Returns them, each with how often its memory has been written to; none once something has moved."""
        if self.moved is not None:
            return []
        tensors = list(tensors_in((args, kwargs)))
        self._see(tensors)
        return [(tensor, times_written(tensor)) for tensor in tensors]

    def after_call(self, arguments: Iterable[tuple[torch.Tensor, int]], result: Any) -> None:
        """Look at the arguments, which the call has brought up to date, and note its results."""
        for tensor, writes in arguments:
            if times_written(tensor) != writes and self.moved is None and shares_elements(tensor):
                self.moved = "a tensor is written to whose elements share memory"
            self.look_at(tensor)
        self._see(tensors_in(result))

    def look_at(self, tensor: torch.Tensor) -> None:
        """Compare a tensor, which is up to date, with what it was when it was seen first."""
        seen = self._seen.get(id(tensor))
        if self.moved is None and seen is not None and seen.geometry != _geometry(tensor):
            self.moved = "a tensor has other sizes or strides than before"

    def _see(self, tensors: Iterable[torch.Tensor]) -> None:
        if self.moved is not None:
            return
        for tensor in tensors:
            if id(tensor) in self._seen:
                continue
            geometry = _geometry(tensor)
            if geometry is None:
                self.moved = "a tensor is sparse, or has symbolic sizes"
                return
            self._seen[id(tensor)] = _Seen(tensor, geometry)


def _geometry(tensor: torch.Tensor) -> Any:
    """Sizes, strides and offset; None where one of them is symbolic or missing."""
    if tensor.layout is not torch.strided or tensor._has_symbolic_sizes_strides:  # type: ignore[attr-defined]
        return None
    return tensor.shape, tensor.stride(), tensor.storage_offset()
