"""The names of `prelude.py` and `libdevice` for Triton's interpreter, where blocks are NumPy arrays.

CUDA's mathematical functions are PyTorch's on the CPU here, and reductions are NumPy's. Units for the interpreter import this
module under the name `triton`, for `jit`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, TensorHandle

jit = InterpretedFunction


def _block(data: np.ndarray[Any, Any], dtype: Any) -> Any:
    """A block of the interpreter around an array."""
    handle = TensorHandle(data, dtype)
    return tl.tensor(handle, tl.block_type(dtype, list(data.shape)) if data.ndim else dtype)


def _data(x: Any) -> np.ndarray[Any, Any]:
    return x.handle.data


def _by_torch(function: Any, dtype: Any = None) -> Any:
    """A function of PyTorch as one of blocks; `dtype` of the result, by default that of the arguments."""

    def of_blocks(*blocks: Any) -> Any:
        arrays = np.broadcast_arrays(*map(_data, blocks))
        result = function(*[torch.from_numpy(np.ascontiguousarray(a)) for a in arrays])
        return _block(result.numpy(), dtype or blocks[-1].dtype.scalar)

    return of_blocks


_SAME = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc lgamma trunc hypot pow atan2 copysign fmod rsqrt"
)
libdevice = SimpleNamespace(
    **{name: _by_torch(getattr(torch, name)) for name in _SAME.split()},
    nearbyint=_by_torch(torch.round),
    fast_expf=_by_torch(torch.exp),
)
float_div = _by_torch(torch.div)
float_sqrt = _by_torch(torch.sqrt)
float_sign = _by_torch(lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype))
int_sign = _by_torch(torch.sign)
float_reciprocal = _by_torch(torch.reciprocal)
float_sigmoid = _by_torch(torch.sigmoid)
rough_div = float_div
rough_sigmoid = float_sigmoid
rough_tanh = _by_torch(torch.tanh)
rough_log1p = _by_torch(torch.log1p)
float_signbit = _by_torch(torch.signbit, tl.int1)
float_maximum = _by_torch(torch.maximum)
float_minimum = _by_torch(torch.minimum)
float_remainder = _by_torch(torch.remainder)
float_floordiv = _by_torch(lambda a, b: torch.div(a, b, rounding_mode="floor"))


def begin_kernel() -> None:
    """Kernels run one after the other here."""


def steps(start: Any, stop: Any, step: Any) -> range:
    """`range` for numbers of the kernel, which the interpreter holds in arrays of one element."""
    return range(*map(_plain, (start, stop, step)))


def _plain(x: Any) -> int:
    return int(_data(x).item()) if isinstance(x, tl.tensor) else int(getattr(x, "value", x))


def require_index(is_inside: Any) -> None:
    if not _data(is_inside).all():
        raise IndexError("index out of range")


def atomic_add(pointer: Any, value: Any, mask: Any = None) -> None:
    """The interpreter (3.7) ignores the strides of arrays here, and so reads broadcast blocks wrongly."""
    blocks = [_dense(pointer), _dense(value), None if mask is None else _dense(mask)]
    tl.atomic_add(*blocks, sem="relaxed")


def _dense(x: Any) -> Any:
    return _block(np.ascontiguousarray(_data(x)), x.dtype.scalar)


def add_product(sums: Any, a: Any, b: Any, precision: str) -> Any:
    return tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision="ieee")


def inner_product(a: Any, b: Any) -> Any:
    return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")


def softmax_step(top: Any, total: Any, sums: Any, scores: Any, values: Any) -> tuple[Any, Any, Any]:
    old, x = _data(top), _data(scores)
    new = np.maximum(old, x.max(axis=1, keepdims=True))
    base = np.where(new == -np.inf, 0, new).astype(new.dtype)
    weights, scale = np.exp(x - base), np.exp(old - base)
    rounded = _block(weights, tl.float32).to(values.dtype).to(tl.float32)
    product = tl.dot(rounded, values.to(tl.float32), _block(_data(sums) * scale, tl.float32), input_precision="ieee")
    whole = _data(total) * scale + weights.sum(axis=1, keepdims=True)
    return _block(new, tl.float32), _block(whole, tl.float32), product


def weighted_mean(total: Any, sums: Any, is_safe: bool) -> Any:
    with np.errstate(invalid="ignore"):
        mean = _data(sums) / _data(total)
    return _block(np.where(_data(total) == 0, 0, mean).astype(mean.dtype) if is_safe else mean, tl.float32)


def _reduction(function: Any) -> Any:
    def reduce(x: Any) -> Any:
        result = function(_data(x), axis=1, keepdims=True)
        return _block(result.astype(_data(x).dtype), x.dtype.scalar)

    return reduce


reduce_sum = _reduction(np.sum)
reduce_prod = _reduction(np.prod)
reduce_max = _reduction(np.max)
reduce_min = _reduction(np.min)
reduce_any = _reduction(np.any)
reduce_all = _reduction(np.all)


def only_value(x: Any) -> Any:
    return x


def online_step(high: Any, low: Any, x: Any, lanes: Any, are_neighbours: bool, _approximately: bool) -> tuple[Any, Any]:
    rows, count = _data(x).shape[0], _plain(lanes)
    values = _data(x).reshape(rows, count, -1) if are_neighbours else _data(x).reshape(rows, -1, count).swapaxes(1, 2)
    new = np.maximum(_data(high), values.max(axis=2))
    base = np.where(new == -np.inf, 0, new).astype(new.dtype)
    low = _data(low) * np.exp(_data(high) - base) + np.exp(values - base[:, :, None]).sum(axis=2)
    return _block(new, x.dtype.scalar), _block(low.astype(new.dtype), x.dtype.scalar)


def _scan(function: Any) -> Any:
    def scan(x: Any) -> Any:
        return _block(function(_data(x), axis=1, dtype=_data(x).dtype), x.dtype.scalar)

    return scan


scan_sum = _scan(np.cumsum)
scan_prod = _scan(np.cumprod)


def last_column(x: Any) -> Any:
    return _block(np.ascontiguousarray(_data(x)[:, -1:]), x.dtype.scalar)


def is_better_max(a: Any, b: Any) -> Any:
    a, b = np.broadcast_arrays(_data(a), _data(b))
    return _block((a > b) | ((a != a) & (b == b)), tl.int1)


def is_better_min(a: Any, b: Any) -> Any:
    a, b = np.broadcast_arrays(_data(a), _data(b))
    return _block((a < b) | ((a != a) & (b == b)), tl.int1)


def _argument(x: Any, position: Any, function: Any) -> tuple[Any, Any]:
    """The best value and the smallest position where it stands; NaN is the best of all, as NumPy has it."""
    values, positions = np.broadcast_arrays(_data(x), _data(position).astype(np.int64))
    best = function(values, axis=1, keepdims=True)
    is_best = (values == best) | ((values != values) & (best != best))
    found = np.where(is_best, positions, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    return _block(best.astype(values.dtype), x.dtype.scalar), _block(found.astype(np.int64), tl.int64)


def reduce_argmax(x: Any, position: Any) -> tuple[Any, Any]:
    return _argument(x, position, np.max)


def reduce_argmin(x: Any, position: Any) -> tuple[Any, Any]:
    return _argument(x, position, np.min)
