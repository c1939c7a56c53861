"""Which sizes and ints of a frame are symbols, and the guards that let them vary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from .source import Source

if TYPE_CHECKING:
    from .options import TracerOptions


def dynamic_dims_of(
    tensor: torch.Tensor, source: Source, known: Mapping[Source, Mapping[int, int]], options: TracerOptions
) -> tuple[int, ...]:
    """Dimensions of an input tensor that the trace must not specialise.

    `known`: what earlier misses have shown to change, dimension -> a larger size that it had (0: none is known). The user's marks on the
    tensor (`treadle.mark_dynamic` and its like) come first. A size of 0 is always specialised, a size of 1 unless the dimension has been
    seen larger: broadcasting depends on it, so the trace needs a larger size to look at. So is a tensor that is not strided.
    """
    if tensor.layout is not torch.strided or type(tensor) is not torch.Tensor:
        return ()
    marked = getattr(tensor, "_treadle_dynamic_dims", frozenset())
    maybe = getattr(tensor, "_treadle_maybe_dynamic_dims", frozenset()) if options.dynamic is not False else frozenset()
    static = getattr(tensor, "_treadle_static_dims", frozenset())
    seen = known.get(source, {})
    wanted = set(range(tensor.dim())) if options.dynamic else set(seen)
    wanted = (
        ({d % tensor.dim() for d in marked | maybe} | wanted) - {d % tensor.dim() for d in static}
        if tensor.dim()
        else set()
    )
    may_pretend = any(seen.values()) and stride_order(tensor) is not None
    return tuple(
        sorted(
            d for d in wanted if tensor.shape[d] > 1 or (tensor.shape[d] == 1 and may_pretend and seen.get(d, 0) > 1)
        )
    )


def stride_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Dimensions from outermost to innermost if the tensor is dense in that order without overlap (contiguous: 0, 1, 2, ...), else None."""
    return _dense_order(tuple(tensor.shape), tuple(tensor.stride())) if tensor.layout is torch.strided else None


def _dense_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    order = tuple(sorted(range(len(sizes)), key=lambda d: (-strides[d], -sizes[d], d)))
    return order if _is_dense(sizes, strides, order) else None


def _is_dense(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    expected = 1
    for d in reversed(order):
        if strides[d] != expected:
            return False
        expected *= max(sizes[d], 1)
    return True


class DynamicSizes:
    """Guard callable of a tensor whose `dims` are not specialised: none of them is empty; if `order` is given, it is dense in it."""

    __slots__ = ("dims", "order")

    def __init__(self, dims: tuple[int, ...], order: tuple[int, ...] | None):
        self.dims = dims
        self.order = order

    def __call__(self, tensor: torch.Tensor) -> bool:
        sizes = tensor.shape
        if any(sizes[d] < 1 for d in self.dims):
            return False
        return self.order is None or _is_dense(sizes, tensor.stride(), self.order)


def is_small_integer(number: int) -> bool:
    """Whether an int may be a symbol: compiled code computes with 64 bits, and the product of two such numbers still fits."""
    return -(2**31) <= number < 2**31


class SizesGuard:
    """Guard callable of all dynamic numbers of an entry: the decisions of the trace hold, and sizes of 1 have been admitted.

    A trace with sizes of 2 and more is not right at 1 by itself: what it decided without a guard (layouts, broadcasting) may come out
    differently there. So which dimensions may be 1 together is admitted case by case, after `output.ones` has looked.

    check    callable(*numbers) -> bool: the recorded decisions
    sizes    positions of tensor sizes among the numbers
    """

    __slots__ = ("_admitted", "_trying", "check", "refused", "sizes")

    def __init__(self, check: Callable[..., bool], sizes: tuple[int, ...]):
        self.check = check
        self.sizes = sizes
        self.refused: set[tuple[int, ...]] = set()
        self._admitted: set[tuple[int, ...]] = set()
        self._trying: int | None = None

    def __call__(self, *numbers: int) -> bool:
        return (1 not in numbers or self._is_admitted(self.ones(numbers))) and self.check(*numbers)

    def ones(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Positions of the sizes that are 1."""
        return tuple(position for position in self.sizes if numbers[position] == 1)

    def _is_admitted(self, ones: tuple[int, ...]) -> bool:
        return not ones or ones in self._admitted or self._trying == threading.get_ident()

    def admit(self, ones: tuple[int, ...]) -> None:
        """From now on the guard holds when exactly these sizes are 1."""
        self._admitted.add(ones)

    @contextlib.contextmanager
    def admitting_all(self) -> Iterator[None]:
        """In this thread, the guard admits everything for the moment: to find out whether the rest of a program holds."""
        self._trying = threading.get_ident()
        try:
            yield
        finally:
            self._trying = None
