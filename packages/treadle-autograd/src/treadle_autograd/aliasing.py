"""Whether the inputs of a call share memory: a functional graph that writes inputs back is right for independent inputs only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

_MOST_KNOWN = 64  # sets of addresses that are remembered


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function from a sequence to the tuple of its items at these positions; a graph may have hundreds."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: tuple([items[k] for k in positions])


def _end(tensor: torch.Tensor, start: int) -> int:
    """The address of the byte after the last element of `tensor`, whose first is at `start`."""
    if tensor.is_contiguous():
        return start + tensor.nbytes
    return start + (_bytes_spanned(tensor) if tensor.numel() else 0)


def why_not_independent(inputs: Sequence[Any], mutated: frozenset[int]) -> str | None:
    """Why the functional graph is wrong for these inputs: an input that it writes back may share memory with another input."""
    starts = [(t.data_ptr(), i, t) for i, t in enumerate(inputs) if isinstance(t, torch.Tensor)]
    extents = [(start, _end(tensor, start), index) for start, index, tensor in starts]
    extents.sort()
    pending: list[tuple[int, int]] = []  # (end, index) of extents that may overlap the next one
    for start, end, index in extents:
        if start == end:
            continue
        if pending:
            pending = [(e, i) for e, i in pending if e > start]
        for _, other in pending:
            if index in mutated or other in mutated:
                return f"inputs {other} and {index} share memory and one of them is changed in place"
        pending.append((end, index))
    return None


def independence_check(input_values: Sequence[Any], mutated: frozenset[int]) -> Callable[[Sequence[Any]], bool]:
    """A function of a call's inputs: whether none that is written back (`mutated`) shares memory with another.

    input_values: fake values of the inputs. Inputs that are all apart are recognised fast: as many begin as have ended at every address,
    which the sorted beginnings and ends tell.
    """
    import numpy  # not needed by graphs that change nothing

    filled = [
        (k, fake) for k, fake in enumerate(input_values) if isinstance(fake, torch.Tensor) and _may_be_filled(fake)
    ]
    if len(filled) < 2:
        return lambda inputs: True
    pick = picker([k for k, _ in filled])
    lengths = numpy.array([_bytes_spanned(fake) if _is_static(fake) else 0 for _, fake in filled], numpy.uint64)
    changing = [at for at, (_, fake) in enumerate(filled) if not _is_static(fake)]
    # The addresses of inputs that were apart, and the lengths that change. They come again: the allocator gives memory back to batches of
    # one size.
    known = set[tuple[tuple[int, ...], tuple[int, ...]]]()

    def are_independent(inputs: Sequence[Any]) -> bool:
        tensors = pick(inputs)
        addresses = tuple(map(torch.Tensor.data_ptr, tensors))
        found = tuple([_end(tensors[at], 0) for at in changing])
        if (addresses, found) in known:
            return True
        starts, spans = numpy.array(addresses, numpy.uint64), lengths
        if changing:
            spans = lengths.copy()
            spans[changing] = found
        ends = starts + spans
        starts.sort()
        ends.sort()
        if bool((ends[:-1] <= starts[1:]).all()):
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known.add((addresses, found))
            return True
        return why_not_independent(inputs, mutated) is None

    return are_independent


def _is_static(fake: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*fake.size(), *fake.stride()))


def _may_be_filled(fake: torch.Tensor) -> bool:
    """Whether there may be elements."""
    return all(type(n) is not int or n > 0 for n in fake.size())


def _bytes_spanned(tensor: torch.Tensor) -> int:
    """The number of bytes from the first element of a tensor to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
