"""Batch norm: with given statistics two numbers for each channel, with those of the batch reductions before that."""

from __future__ import annotations

from collections.abc import Callable

import torch

from treadle_codegen.ir.loops import BufferKind
from treadle_codegen.ir.ops import FLOATS, LOW_FLOATS, compute_dtype
from treadle_codegen.lower.context import Lowering
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.moments import as_float, count_of, moments
from treadle_codegen.lower.normalize import converted
from treadle_codegen.lower.registry import lowering
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import reshape


def _channelwise(x: TensorExpr, p: TensorExpr) -> TensorExpr:
    """A vector over dimension 1, shaped for broadcasting."""
    return p.view(reshape(p.shape, (1, x.shape[1], *[1] * (x.dim - 2))))


def batch_norm_inference(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    mean: TensorExpr,
    var: TensorExpr,
    eps: float,
    dtype: torch.dtype,
) -> TensorExpr:
    """x * scale + shift, with scale and shift stored per channel (as ATen computes it)."""
    compute = compute_dtype(dtype)
    if any(size == 0 for size in x.shape):
        return lw.full(x.shape, 0, dtype)

    def inverse(o: LoopBuilder, v: int) -> int:
        return o.op("rsqrt", o.op("add", v, o.const(eps, compute)))

    return _scaled(lw, x, weight, bias, mean, var, inverse, dtype)


def _scaled(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    mean: TensorExpr,
    spread: TensorExpr,
    inverse_of: Callable[[LoopBuilder, int], int],
    dtype: torch.dtype,
) -> TensorExpr:
    """x * scale + shift, where `inverse_of` makes 1/deviation of an element of `spread`; both are stored unless recomputing them is
    cheap."""
    compute = compute_dtype(dtype)

    def scale_of(o: LoopBuilder, v: int, *rest: int) -> int:
        inverse = inverse_of(o, v)
        return o.op("mul", inverse, rest[0]) if rest else inverse

    def shift_of(o: LoopBuilder, m: int, s: int, *rest: int) -> int:
        moved = o.op("mul", m, s)
        return o.op("sub", rest[0], moved) if rest else o.op("neg", moved)

    optional = [] if weight is None else [weight]
    scale = lw.pointwise(scale_of, [spread, *optional], compute, shape=spread.shape, compute=compute, cost=8)
    is_given = all(lw.buffers[name].kind is not BufferKind.TEMP for name in spread.reads)
    stored = not is_given or scale.cost > lw.costs.recompute
    if stored:
        lw.realize(scale)
    optional = [] if bias is None else [bias]
    shift = lw.pointwise(shift_of, [mean, scale, *optional], compute, shape=mean.shape, compute=compute, cost=2)
    if stored:
        lw.realize(shift)
    return lw.pointwise(
        lambda o, v, s, t: o.op("add", o.op("mul", v, s), t),
        [x, _channelwise(x, scale), _channelwise(x, shift)], dtype, shape=x.shape, compute=compute, cost=2,
    )  # fmt: skip


@lowering("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    mean: TensorExpr,
    var: TensorExpr,
    momentum: float,
    eps: float,
) -> tuple[TensorExpr | None, ...] | None:
    out, *saved = lw.val
    if compute_dtype(out.dtype) not in FLOATS:
        return None
    is_empty = all(0 in tuple(v.shape) for v in saved)
    if not is_empty and not lw.used_results <= {0}:
        return None  # on GPUs the statistics have values, which gradients need
    result = batch_norm_inference(lw, x, weight, bias, mean, var, eps, out.dtype)
    return result, *[lw.full(tuple(v.shape), 0, v.dtype) if is_empty else None for v in saved]


@lowering("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default", "aten.cudnn_batch_norm.default")
def native_batch_norm(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    mean: TensorExpr | None,
    var: TensorExpr | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorExpr | None, ...] | None:
    if training and mean is None and var is None and (len(lw.val) == 3 or lw.used_results <= {0}):
        made = _of_the_batch(lw, x, weight, bias, None, None, momentum, eps)
        return None if made is None else (*made, *[None] * (len(lw.val) - 3))  # cuDNN's reserve, which gradients need
    if training or mean is None or var is None:
        return None
    return batch_norm_no_training(lw, x, weight, bias, mean, var, momentum, eps)


@lowering("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    mean: TensorExpr,
    var: TensorExpr,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorExpr | None, ...] | None:
    return _of_the_batch(lw, x, weight, bias, mean, var, momentum, eps) if training else None


@lowering("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorExpr | None, ...] | None:
    return _of_the_batch(lw, x, weight, bias, None, None, momentum, eps)


def _of_the_batch(
    lw: Lowering,
    x: TensorExpr,
    weight: TensorExpr | None,
    bias: TensorExpr | None,
    old_mean: TensorExpr | None,
    old_var: TensorExpr | None,
    momentum: float,
    eps: float,
) -> tuple[TensorExpr, ...] | None:
    """(result, mean, 1/deviation), and the new running statistics where there are old ones."""
    out, *saved = lw.val
    dtype = compute_dtype(out.dtype)
    if dtype not in FLOATS or x.dim < 2 or any(size == 0 for size in x.shape):
        return None
    if any(p is not None and p.dtype != x.dtype for p in (weight, bias, old_mean, old_var)):
        return None  # some overloads' fake statistics have x's dtype, eager's that of the weights
    if out.dtype in LOW_FLOATS and lw.used_results & {1, 2}:
        return None  # statistics of 16 bits that gradients need are left to ATen
    dims = [d for d in range(x.dim) if d != 1]
    count = count_of(x, dims)
    lw.settle_for_moments(x)
    mean, total = [p.view(reshape(p.shape, (x.shape[1],))) for p in moments(lw, x, dims, dtype)]

    def inverse(o: LoopBuilder, t: int) -> int:
        variance = o.op("div", t, as_float(o, count, dtype))
        return o.op("rsqrt", o.op("add", variance, o.const(eps, dtype)))

    def moved(old: TensorExpr, new: TensorExpr, result: torch.dtype, divide: bool) -> TensorExpr:
        """The running statistic; variances there are those of a sample."""
        if divide:
            new = lw.pointwise(
                lambda o, t: o.op("div", t, o.op("sub", as_float(o, count, dtype), o.const(1.0, dtype))),
                [new], dtype, shape=new.shape, compute=dtype, cost=4,
            )  # fmt: skip

        def fn(o: LoopBuilder, a: int, b: int) -> int:
            return o.op("add", o.op("mul", o.const(momentum, dtype), b), o.op("mul", o.const(1 - momentum, dtype), a))

        return lw.pointwise(fn, [old, new], result, shape=old.shape, compute=dtype, cost=3)

    result = _scaled(lw, x, weight, bias, mean, total, inverse, out.dtype)
    deviation = lw.pointwise(inverse, [total], dtype, shape=total.shape, compute=dtype, cost=8)
    statistics = [converted(lw, mean, saved[0].dtype), converted(lw, deviation, saved[1].dtype)]
    if old_mean is None or old_var is None:
        return result, *statistics
    running = moved(old_mean, mean, saved[2].dtype, False), moved(old_var, total, saved[3].dtype, True)
    return result, *statistics, *running
