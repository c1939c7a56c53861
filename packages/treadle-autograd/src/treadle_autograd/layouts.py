"""Eager's strides along sizes of 0 and 1, where torch's fake kernels give others.

    x = torch.empty_strided((1, 3), (0, 3))
    torch.zeros_like(x).stride()        eager (0, 3), fake (3, 3): both address the same elements, but `stride()` differs

Only static sizes and strides are corrected. The operators concerned write into a tensor made like their first argument (`at::empty_like`,
`at::clone`), found by running the operator samples with sizes of 0 and 1 (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.expr import factors_of
from treadle_shapes.layouts import nested_extent, without_floor
from treadle_shapes.torch import Operator, env_of, raw_expr


def like_first_argument(record: Operator | None, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """The fake result of a call with the strides of the call's first argument, if `record` says that eager's result has them.

    Eager keeps the strides of an argument that fills a block of memory.
    """
    if record is None or not record.like_first_argument or not args or not isinstance(args[0], torch.Tensor):
        return result
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return result
    x = args[0]
    if not _is_static(x) or all(n > 1 for n in x.shape) or x.layout is not torch.strided or not _fills_a_block(x):
        return result
    if isinstance(result, torch.Tensor):
        return _with_strides_of(x, result)
    return type(result)([_with_strides_of(x, item) for item in result])


def _is_static(x: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset()))


def _fills_a_block(x: torch.Tensor) -> bool:
    """Whether c10 calls the tensor non-overlapping and dense (TensorImpl.cpp). Sizes below 2 do not count."""
    if x.dim() == 1:
        return x.shape[0] < 2 or x.stride(0) == 1
    return nested_extent([(s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n >= 2]) is not None


def _with_strides_of(x: torch.Tensor, result: Any) -> Any:
    if not isinstance(result, torch.Tensor) or result.shape != x.shape or result.stride() == x.stride():
        return result
    return torch.empty_strided(tuple(x.shape), x.stride(), dtype=result.dtype, device=result.device)


def same_layout(mine: tuple[Any, Any], theirs: tuple[Any, Any]) -> bool:
    """Whether two (sizes, strides) agree. Strides of dimensions of size 1 do not count."""
    if mine[0] != theirs[0]:
        return False
    sizes_and_strides = zip(mine[0], mine[1], theirs[1], strict=True)
    return mine[1] == theirs[1] or all(m == t for size, m, t in sizes_and_strides if size != 1)


def memory_order(x: torch.Tensor) -> list[int] | None:
    """The dimensions of a tensor whose elements share no memory, in the order of its memory; None where that is the row-major order or not
    known.

    `x.bernoulli_(p)`, and so dropout, draws in the order of memory (aten/src/ATen/native/cpu/DistributionTemplates.h), the functional
    `bernoulli.p` in row-major order, because its result is always contiguous.
    """
    if not all(type(n) is int for n in (*x.shape, *x.stride())):
        return None
    order = _by_stride(x.shape, x.stride())
    reached = 0
    for d in reversed(order):
        if x.shape[d] > 1:
            if x.stride(d) <= reached:
                return None
            reached += (x.shape[d] - 1) * x.stride(d)
    long = [d for d in order if x.shape[d] > 1]
    return None if long == sorted(long) else order


def dense_order(size: Sequence[Any], strides: Sequence[Any]) -> list[int] | None:
    """The dimensions in the order of memory, slowest first, of a tensor that fills a block of memory; None for others, and where that
    takes a decision on symbolic numbers."""
    if not all(type(n) is int for n in (*size, *strides)):
        return _symbolic_order([raw_expr(n) for n in size], [without_floor(raw_expr(n)) for n in strides])
    order = _by_stride(size, strides)
    expected = 1
    for d in reversed(order):
        if size[d] != 1 and strides[d] != expected:
            return None
        expected *= size[d]
    return order


def _symbolic_order(size: Sequence[Any], strides: Sequence[Any]) -> list[int] | None:
    """`dense_order` of expressions: from the fastest dimension on, the one whose stride is the product of the sizes before."""
    remaining = [d for d in range(len(size)) if size[d] != 1]
    order = [d for d in range(len(size)) if size[d] == 1]
    slowest = len(order)
    expected: Any = 1
    while remaining:
        found = next((d for d in remaining if strides[d] == expected), None)
        if found is None:
            return None
        remaining.remove(found)
        order.insert(slowest, found)
        expected = expected * size[found]
    return order


def _by_stride(size: Sequence[int], strides: Sequence[int]) -> list[int]:
    return sorted(range(len(size)), key=lambda d: (-strides[d], d))


# Most arguments. `isinstance` takes long for classes of `collections.abc`.
_WITHOUT_TENSORS = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device})


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among values, nested in lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            if type(item) not in _WITHOUT_TENSORS:
                yield from tensors_in(item)
    elif isinstance(value, Mapping):
        yield from tensors_in(tuple(value.values()))


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory. A symbolic size counts as more than 1, because a question about it would be a guard."""
    if tensor.layout != torch.strided:
        return False
    sizes_and_strides = zip(tensor.size(), tensor.stride(), strict=True)
    return any(
        (isinstance(size, torch.SymInt) or size != 1) and not _is_made_of_sizes(stride, tensor.size()) and stride == 0
        for size, stride in sizes_and_strides
    )


def _is_made_of_sizes(stride: Any, sizes: Sequence[Any]) -> bool:
    """Whether a stride that only the run of the graph can tell is a product of sizes: it is 0 only where the tensor has no elements."""
    env = env_of(stride)
    if env is None or not env.is_unbacked(raw_expr(stride)):
        return False
    factors = frozenset().union(*[factors_of(raw_expr(size)) for size in sizes])
    return factors >= factors_of(raw_expr(stride))
