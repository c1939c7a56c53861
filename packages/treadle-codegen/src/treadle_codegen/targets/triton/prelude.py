"""Device functions of generated kernels, as Triton compiles them.

Kernels import the names below and `libdevice`. `interpreted.py` gives other meanings of the same names to Triton's interpreter. Functions
for index arithmetic are text (`treadle_shapes.expr.TRITON_HELPERS`) and stand in every unit.
"""

from __future__ import annotations

import re

import triton
import triton.language as tl
from triton.language.extra import libdevice

_FIRST_EARLY = 90  # compute capability, times 10


def _capability(semantic):
    """Ten times the compute capability that a kernel is compiled for; 0 for devices that are not Nvidia's."""
    family, digits = re.fullmatch(r"(\D*)(\d*).*", str(semantic.builder.options.arch)).groups()
    return int(digits) if family == "sm" else 0


@tl.core.extern
def begin_kernel(_semantic=None):
    """Called first by every kernel: lets the next one of the stream come onto the device, and waits for the one before to end.

    The launcher lets kernels begin early where both can be done: their blocks are in place by the time the results of the kernel before
    are (CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization")."""
    if _capability(_semantic) >= _FIRST_EARLY:
        tl.extra.cuda.gdc_launch_dependents(_semantic=_semantic)
        tl.extra.cuda.gdc_wait(_semantic=_semantic)


@tl.core.extern
def _rough_log(x, _semantic=None):
    if _capability(_semantic):
        return tl.extra.cuda.libdevice.fast_logf(x, _semantic=_semantic)
    return tl.log(x, _semantic=_semantic)


@triton.jit
def require_index(is_inside):
    """As eager: the kernel and all that follows it on the device fail. Off unless the kernel is compiled with `debug`."""
    tl.device_assert(is_inside, "index out of range")


@triton.jit
def atomic_add(pointer, value, mask=None):
    tl.atomic_add(pointer, value, mask, sem="relaxed")


@triton.jit
def int_sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def float_sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def float_div(a, b):
    """Rounded as IEEE 754 has it; `/` of float32 numbers is not, and that of float64 numbers is."""
    if a.dtype == tl.float32:
        q = tl.div_rn(a, b)
    else:
        q = a / b
    return q


@triton.jit
def float_sqrt(x):
    if x.dtype == tl.float32:
        r = tl.sqrt_rn(x)
    else:
        r = tl.sqrt(x)
    return r


@triton.jit
def float_reciprocal(x):
    return float_div(tl.full([1], 1, x.dtype), x)


@triton.jit
def float_sigmoid(x):
    return float_div(tl.full([1], 1, x.dtype), 1 + libdevice.exp(-x))


@triton.jit
def rough_div(a, b):
    return a / b


@triton.jit
def rough_sigmoid(x):
    return 1.0 / (1 + libdevice.fast_expf(-x))


@triton.jit
def rough_tanh(x):
    """Next to 0, where 1 - 2 / (exp(2 x) + 1) loses its digits, the first terms of the series."""
    near = x * (1 - x * x * 0.33333334)
    return tl.where(tl.abs(x) < 0.03125, near, 1 - 2.0 / (libdevice.fast_expf(2 * x) + 1))


@triton.jit
def rough_log1p(x):
    near = x * (1 - x * (0.5 - x * 0.33333334))
    return tl.where(tl.abs(x) < 0.015625, near, _rough_log(1 + x))


@triton.jit
def _exponential(x, approximately: tl.constexpr):
    if approximately:
        r = libdevice.fast_expf(x)
    else:
        r = libdevice.exp(x)
    return r


@triton.jit
def float_signbit(x):
    if x.dtype == tl.float64:
        negative = x.to(tl.int64, bitcast=True) < 0
    else:
        negative = x.to(tl.int32, bitcast=True) < 0
    return negative


@triton.jit
def float_maximum(a, b):
    """One instruction for float32: NaN if either is NaN, and 0 is more than -0."""
    if a.dtype == tl.float32:
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        r = tl.where((a > b) | (a != a), a, b)
    return r


@triton.jit
def float_minimum(a, b):
    if a.dtype == tl.float32:
        r = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    else:
        r = tl.where((a < b) | (a != a), a, b)
    return r


@triton.jit
def float_remainder(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def float_floordiv(a, b):
    """As `div_floor_floating` of c10/util/generic_math.h."""
    whole = float_div(a, b)
    r = libdevice.fmod(a, b)
    q = float_div(a - r, b)
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
    f = tl.floor(q)
    f = tl.where(q - f > 0.5, f + 1, f)
    f = tl.where(q == 0, libdevice.copysign(q * 0, whole), f)
    return tl.where(b == 0, whole, f)


@triton.jit
def add_product(sums, a, b, precision: tl.constexpr):
    return tl.dot(a, b, sums, input_precision=precision)


@triton.jit
def inner_product(a, b):
    return tl.dot(a, b, out_dtype=tl.float32)


@triton.jit
def softmax_step(top, total, sums, scores, values):
    """What a further block of scores and values makes of the largest score, the sum of exponentials and the weighted sum of values."""
    new = tl.maximum(top, tl.max(scores, 1, keep_dims=True))
    base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp(scores - base)
    scale = tl.exp(top - base)
    total = total * scale + tl.sum(weights, 1, keep_dims=True)
    sums = tl.dot(weights.to(values.dtype), values, sums * scale)
    return new, total, sums


@triton.jit
def weighted_mean(total, sums, is_safe: tl.constexpr):
    mean = sums / total
    if is_safe:
        mean = tl.where(total == 0.0, 0.0, mean)
    return mean


@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _first(a, b):
    return a


@triton.jit
def only_value(x):
    """The value of a block of one element. Triton gives a number any layout for free, a block only through shared memory."""
    return tl.reduce(x, None, _first)


@triton.jit
def reduce_sum(x):
    return tl.sum(x, 1)[:, None].to(x.dtype)


@triton.jit
def reduce_prod(x):
    return tl.reduce(x, 1, _multiply)[:, None].to(x.dtype)


@triton.jit
def reduce_max(x):
    if x.dtype.is_floating():
        found = tl.reduce(x, 1, float_maximum)
    else:
        found = tl.max(x, 1)
    return found[:, None].to(x.dtype)


@triton.jit
def reduce_min(x):
    if x.dtype.is_floating():
        found = tl.reduce(x, 1, float_minimum)
    else:
        found = tl.min(x, 1)
    return found[:, None].to(x.dtype)


@triton.jit
def reduce_any(x):
    return tl.max(x.to(tl.int32), 1)[:, None] != 0


@triton.jit
def reduce_all(x):
    return tl.min(x.to(tl.int32), 1)[:, None] != 0


@triton.jit
def online_step(high, low, x, lanes: tl.constexpr, are_neighbours: tl.constexpr, approximately: tl.constexpr):
    """The maximum of each lane's values, and the sum of their exponentials below it, with the values of one more step.

    A lane's values are next to each other in the block, or as far apart as there are lanes."""
    if are_neighbours:
        together = tl.reshape(x, [x.shape[0], lanes, x.shape[1] // lanes])
        new = float_maximum(high, tl.reduce(together, 2, float_maximum))
        base = tl.where(new == float("-inf"), 0.0, new)  # -inf - -inf would be NaN
        terms = tl.sum(_exponential(together - base[:, :, None], approximately), 2)
    else:
        together = tl.reshape(x, [x.shape[0], x.shape[1] // lanes, lanes])
        new = float_maximum(high, tl.reduce(together, 1, float_maximum))
        base = tl.where(new == float("-inf"), 0.0, new)
        terms = tl.sum(_exponential(together - base[:, None, :], approximately), 1)
    return new, low * _exponential(high - base, approximately) + terms


@triton.jit
def scan_sum(x):
    return tl.cumsum(x, 1).to(x.dtype)


@triton.jit
def scan_prod(x):
    return tl.cumprod(x, 1).to(x.dtype)


@triton.jit
def last_column(x):
    """The last value of each row, whatever the others are."""
    lane = tl.arange(0, x.shape[1])[None, :]
    return tl.sum(tl.where(lane == x.shape[1] - 1, x, tl.zeros([1, 1], x.dtype)), 1)[:, None].to(x.dtype)


@triton.jit
def is_better_max(a, b):
    """Whether `a` takes the place of `b`, which came before it: NaN is the largest of all."""
    return (a > b) | ((a != a) & (b == b))


@triton.jit
def is_better_min(a, b):
    return (a < b) | ((a != a) & (b == b))


@triton.jit
def _first_position(x, best, position):
    """The first position in each row where the best value stands; where that is NaN, of the first NaN."""
    is_best = (x == best) | ((x != x) & (best != best))
    if position.dtype == tl.int64:
        found = tl.min(tl.where(is_best, position, 9223372036854775807), 1)
    else:
        found = tl.min(tl.where(is_best, position, 2147483647), 1)
    return found[:, None].to(tl.int64)


@triton.jit
def reduce_argmax(x, position):
    best = reduce_max(x)
    return best, _first_position(x, best, position)


@triton.jit
def reduce_argmin(x, position):
    best = reduce_min(x)
    return best, _first_position(x, best, position)
