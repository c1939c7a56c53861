"""Strides that eager gives results where torch's fake kernels give others: along sizes of 0 and 1, and by `roll`.

    x = torch.empty_strided((1, 3), (0, 3))
    torch.zeros_like(x).stride()        eager (0, 3), fake (3, 3): both are right about every element, but `stride()` shows

Only sizes and strides that are numbers are corrected. The facts are torch 2.13's, found by running the operator samples with sizes of 0
and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_shapes.layouts import nested_extent

aten = torch.ops.aten


def _fake_roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """Eager's `roll` is `narrow` and `cat` (aten/src/ATen/native/TensorTransformations.cpp), which keep channels-last; torch's fake
    kernel (2.13) forgets it."""
    if len(dims) != len(shifts) or any(not isinstance(n, int) or n == 0 for n in x.shape):
        return aten.roll.default(x, shifts, dims)
    for shift, dim in zip(shifts, dims, strict=True):
        start = (x.shape[dim] - shift) % x.shape[dim]
        x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x


def _is_static(x: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset()))


# Operators that write into a tensor made like their first argument (`at::empty_like`, `at::clone`): its strides, whatever they say of
# sizes of 0 and 1, are the result's if its elements fill a block of memory.
_LIKE_ARGUMENT = frozenset(
    {
        *("full_like", "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "randint_like", "fill"),
        *(
            "index_put",
            "index_fill",
            "index_add",
            "index_copy",
            "scatter",
            "scatter_add",
            "scatter_reduce",
            "masked_scatter",
        ),
        *("flip", "frexp", "nan_to_num", "sort"),
    }
)


def _fills_a_block(x: torch.Tensor) -> bool:
    """As c10 has it (TensorImpl::compute_non_overlapping_and_dense): sizes below 2 do not count."""
    if x.dim() == 1:
        return x.shape[0] < 2 or x.stride(0) == 1
    return nested_extent([(s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n >= 2]) is not None


def like_argument(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> Any:
    """The fake result of a call with eager's strides along sizes of 0 and 1."""
    if (
        func._schema.name.removeprefix("aten::") not in _LIKE_ARGUMENT
        or not args
        or not isinstance(args[0], torch.Tensor)
    ):
        return result
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return result
    x = args[0]
    if not _is_static(x) or all(n > 1 for n in x.shape) or x.layout is not torch.strided or not _fills_a_block(x):
        return result
    if isinstance(result, torch.Tensor):
        return _restrided(result, x)
    return type(result)([_restrided(item, x) for item in result])


def _restrided(result: Any, x: torch.Tensor) -> Any:
    if not isinstance(result, torch.Tensor) or result.shape != x.shape or result.stride() == x.stride():
        return result
    return torch.empty_strided(tuple(x.shape), x.stride(), dtype=result.dtype, device=result.device)


# Operator -> what tells its fake result with eager's strides.
FAKE_AS_EAGER: dict[Any, Callable[..., Any]] = {
    aten.roll.default: _fake_roll,
}
