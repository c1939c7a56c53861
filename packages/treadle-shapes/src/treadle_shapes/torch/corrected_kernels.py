"""Corrected fake kernels, where PyTorch's raise or give another layout than eager. Needs torch.

`kernels()` maps overloads to the kernels that a `TreadleFakeMode` runs. `Operator.fake_correction` names the correction of an operator.

- view strides (torch 2.11 to 2.13): `torch.empty_strided((1, 1, 2, 4), (8, 4, 4, 1)).view(1, 1, 8)` has strides (8, 8, 1) in eager and
  (8, 4, 1) as a fake. Both address every element correctly, but operators that choose a layout by the strides choose another.
  And `torch.ones(2, 2, 5)[:, :1].view(-1)` raises in eager only: fake tensors leave sizes of 1 out and compare too few strides.
- fused encoder layer: torch 2.11 and 2.12 have no fake kernel for the layer that `nn.TransformerEncoderLayer` calls in eval mode. That of
  2.13 keeps the strides of its input; eager's result is always contiguous (aten/src/ATen/native/transformers/transformer.cpp).
- layouts of convolutions: PyTorch's fake kernel skips the step that decides the layout when symbolic sizes have no hint (see
  `SymNode.has_hint`), and the result would always be contiguous. `_convolution` has a fake kernel of its own from torch 2.13 on.
- sizes of slices: where the ends of a slice are unbacked, fake kernels make a symbol for the size (torch 2.11 for any end that may lie
  outside, 2.13 where the sign of an end is unknown). The correction defines that symbol by the ends; nothing else would.
- packed sequences: PyTorch's fake kernel gives the packed rows the size of the padded steps, and the counts the dtype of the rows
  (torch 2.11 to 2.13). How many rows there are, and how many counts, only the lengths tell (aten/src/ATen/native/PackedSequence.cpp).

- nearest neighbours of no images: PyTorch's fake kernels hand a size to `torch._check`, which takes truth values alone, where the batch is
  empty and the sizes are symbolic (torch 2.11 to 2.13).
- layouts beside numbers: the result of `x + 1` has the strides of an iteration over tensors of different shapes in eager, since the number
  is a tensor without dimensions (aten/src/ATen/TensorIterator.cpp, fast_set_up). PyTorch's kernels for symbolic sizes leave the number out,
  and take `torch.empty_strided((1, 3, 4, 4), (3, 1, 12, 3))` for channels-last, which it is but for the stride of the size of 1 (2.11 to
  2.13): see `fast_kernels`. `result_layouts` has those of constant sizes.
- counts of elements: PyTorch's fake kernels bound the number of elements that `nonzero` finds by the SymPy form of the sizes, which they
  cannot where one size is divided by another. That of `masked_select` bounds it by the first argument, whatever the mask is broadcast to
  (torch 2.11 to 2.13).
- unique slices: PyTorch's fake kernels make a row-major result, where the CPU moves the dimension of the slices to the front and back
  (aten/src/ATen/native/Unique.cpp). That of `unique_consecutive` gives the wrong number of dimensions for one counted from the end
  (2.11 to 2.13).
- dimensions out of range: `x.softmax(7)` of a matrix raises in eager only; a few of PyTorch's fake kernels ask nothing of the dimension
  (torch 2.11 to 2.13).
- arguments that eager refuses: `refused_arguments`.
- gradients of resampling: PyTorch has fake kernels in C++ for most of them, which take no symbolic sizes (torch 2.11 to 2.13).
- zeros of tangents: forward-mode derivatives make zeros in the layout of a primal in C++, which takes no symbolic offsets (torch 2.11 to
  2.13).

`batch_norm` and `recurrent_layers` correct decompositions, not fake kernels. `patches` installs them.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import (
    suggest_memory_format,
)
from torch._subclasses import fake_impls

from treadle_shapes.logic import Eq, Lt
from treadle_shapes.nodes import IntLike, Symbol, free_symbols
from treadle_shapes.rules import ceildiv, maximum, minimum, where
from treadle_shapes.torch.operators.declare import corrected_by
from treadle_shapes.torch.ours import TreadleShapeEnv, raw_expr

# -- batch norm --------------------------------------------------------------------------------------------------------


def batch_norm(
    helper: Callable[..., Any],
    x: torch.Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
    functional: bool,
) -> Any:
    """PyTorch's decomposition `helper` of batch norm, corrected for training with one value per channel.

    Eager divides by n - 1 == 0 in floats and counts `nan` into the running variance (aten/src/ATen/native/Normalization.cpp,
    batch_norm_cpu_update_stats_template). The decomposition divides Python numbers and raises ZeroDivisionError
    (torch/_decomp/decompositions.py, native_batch_norm_helper, torch 2.11 to 2.13).
    """
    if not training or var is None or not isinstance(x.numel(), int) or x.numel() != x.shape[1] or x.numel() == 0:
        return helper(x, weight, bias, mean, var, training, momentum, eps, functional)
    output, save_mean, save_rstd, new_mean, _ = helper(x, weight, bias, mean, None, training, momentum, eps, functional)
    new_var = var * math.nan
    if not functional:
        var.copy_(new_var)
    return output, save_mean, save_rstd, new_mean, new_var


# -- recurrent layers --------------------------------------------------------------------------------------------------


def recurrent_layers(
    decomposition: Callable[..., Any],
    input: torch.Tensor,
    hidden: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: Callable[..., Any],
) -> tuple[torch.Tensor, list[Any]]:
    """Layers of an LSTM, GRU or RNN as ATen runs them (`apply_layer_stack` in aten/src/ATen/native/RNN.cpp): dropout between them.

    decomposition: PyTorch's `_rnn_helper`, whose arguments the others are; it runs one layer at a time, without dropout. Returns the output
    and the last hidden states of all layers.
    """
    output = input.transpose(0, 1) if batch_first else input
    states: list[Any] = []
    directions = 2 if bidirectional else 1
    for layer in range(num_layers):
        own = slice(layer * directions, (layer + 1) * directions)
        if layer and train and dropout != 0:
            output = torch.dropout(output, dropout, train=True)
        output, last = decomposition(
            output, hidden[own], params[own], has_biases, 1, 0.0, train, bidirectional, False, layer_fn
        )
        states += last
    return (output.transpose(0, 1) if batch_first else output), states


# -- encoder layer -----------------------------------------------------------------------------------------------------


def _encoder_layer(mode: Any, func: Any, src: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if src.is_nested:
        return NotImplemented
    with mode:
        return src.new_empty(src.shape)


# -- views -------------------------------------------------------------------------------------------------------------


def view_strides(sizes: Sequence[int], strides: Sequence[int], target: Sequence[int]) -> list[int] | None:
    """The strides of `x.view(target)` (aten/src/ATen/TensorUtils.cpp, computeStride); None where a view is not possible.

    The dimensions fall into runs that are contiguous in memory. From the last run to the first, the target's sizes fill each run, starting
    from the run's smallest stride.
    """
    if 0 in sizes and list(sizes) == list(target):
        return list(strides)
    if 0 in sizes or not sizes:
        return None
    result = [0] * len(target)
    at = len(target) - 1
    step, run, placed = strides[-1], 1, 1
    for d in reversed(range(len(sizes))):
        run *= sizes[d]
        if d and (sizes[d - 1] == 1 or strides[d - 1] == run * step):
            continue
        while at >= 0 and (placed < run or target[at] == 1):
            result[at] = placed * step
            placed *= target[at]
            at -= 1
        if placed != run:
            return None
        if d:
            step, run, placed = strides[d - 1], 1, 1
    return result if at < 0 else None


def _view(mode: Any, func: Any, x: torch.Tensor, *shape: Any, **options: Any) -> Any:
    result = _theirs(func)(mode, func, x, *shape, **options)
    if not _is_static(x) or not _is_static(result) or all(n > 1 for n in (*x.shape, *result.shape)):
        return result
    strides = view_strides(x.shape, x.stride(), result.shape)
    if strides is None and x.dim() and 0 not in x.shape:
        raise RuntimeError(
            f"a view of sizes {tuple(x.shape)} and strides {x.stride()} with sizes {tuple(result.shape)} is not possible"
        )
    if strides is None or strides == list(result.stride()):
        return result
    return torch.as_strided(result, tuple(result.shape), strides, result.storage_offset())


def _is_static(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and all(type(n) is int for n in (*x.shape, *x.stride(), x.storage_offset()))


# -- convolutions ------------------------------------------------------------------------------------------------------


def _convert_layout(mode: Any, t: torch.Tensor | None, layout: torch.memory_format) -> torch.Tensor | None:
    if t is None:
        return None
    with mode:
        if t.dim() == 3 and layout == torch.channels_last:
            return t.unsqueeze(2).to(memory_format=layout).squeeze(2)
        return t.to(memory_format=layout)


def _convolution_layout(mode: Any, func: Any, args: Any, kwargs: Any) -> torch.memory_format:
    """Return the layout of the real convolution's result. It depends on the layouts of input and weight only, so questions
    about sizes during the choice of a kernel are answered without guards."""
    from torch.fx.operator_schemas import normalize_function

    bound = normalize_function(func, args, kwargs, normalize_to_only_use_kwargs=True)
    assert bound is not None, f"{func} does not match its schema"
    given = bound.kwargs
    image, weight = given["input"], given["weight"]
    suggested = {torch._prims_common.suggest_memory_format(t) for t in (image, weight)}
    if suggested == {torch.contiguous_format} or not (
        image._has_symbolic_sizes_strides or weight._has_symbolic_sizes_strides
    ):
        return torch.preserve_format
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    choice = {name: given[name] for name in names} | {"bias": given.get("bias")}
    if choice["bias"] is None:
        choice["bias_sizes"] = given.get("bias_sizes")
    with mode, mode.shape_env.env.suppress_guards():
        backend = torch._C._select_conv_backend(image, weight, **choice)
        if weight.dim() == 3:
            image, weight = image.contiguous().unsqueeze(2), weight.unsqueeze(2)
        return torch._C._conv_determine_backend_memory_format(image, weight, backend)


def _convolution(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    out = _theirs(func)(mode, func, *args, **kwargs)
    if not isinstance(mode.shape_env, TreadleShapeEnv):
        return out
    layout = _convolution_layout(mode, func, args, kwargs)
    if layout is torch.preserve_format:
        return out
    if isinstance(out, tuple):
        return (*[_convert_layout(mode, t, layout) for t in out[:2]], *out[2:])
    return _convert_layout(mode, out, layout)


# -- slices ------------------------------------------------------------------------------------------------------------


def _slice(mode: Any, func: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    out = _theirs(func)(mode, func, x, dim, start, end, step)
    size, adapter = out.shape[dim], mode.shape_env
    symbol = raw_expr(size) if isinstance(adapter, TreadleShapeEnv) and isinstance(size, torch.SymInt) else None
    if isinstance(symbol, Symbol) and symbol not in adapter.env.hints:
        before, first, last, by = (raw_expr(n) for n in (x.shape[dim], start, end, step))
        if symbol not in free_symbols(before):
            first = 0 if first is None else _clamped(first, before)
            last = before if last is None or last == sys.maxsize else _clamped(last, before)
            adapter.env.add_fact(Eq(symbol, ceildiv(maximum(last - first, 0), by)))
    return out


def _clamped(place: IntLike, size: IntLike) -> IntLike:
    """Return an end of a slice as a position from the front, within the dimension."""
    return maximum(0, minimum(where(Lt(place, 0), place + size, place), size))


# -- counts of elements ----------------------------------------------------------------------------------------------------


def _nonzero(mode: Any, func: Any, x: Any) -> Any:
    """Gives the number of elements to PyTorch's kernel, which answers, where the sizes are symbolic."""
    adapter = mode.shape_env
    count = raw_expr(x.numel())
    if isinstance(adapter, TreadleShapeEnv) and adapter.allow_dynamic_output_shape_ops and not isinstance(count, int):
        if x.nonzero_memo is None:
            x.nonzero_memo = adapter.create_unbacked_size(count)
    return NotImplemented


def _masked_select(mode: Any, func: Any, x: torch.Tensor, mask: torch.Tensor) -> Any:
    adapter = mode.shape_env
    if adapter is None or not adapter.allow_dynamic_output_shape_ops:
        raise fake_impls.DynamicOutputShapeException(func)
    dims = itertools.zip_longest(reversed(x.shape), reversed(mask.shape), fillvalue=1)
    most = math.prod(maximum(raw_expr(a), raw_expr(b)) for a, b in dims)
    with mode:
        return x.new_empty((adapter.create_unbacked_size(most),))


# -- packed sequences --------------------------------------------------------------------------------------------------


def _packed_sequence(mode: Any, func: Any, inputs: torch.Tensor, lengths: Any, batch_first: bool) -> Any:
    adapter = mode.shape_env
    if adapter is None or not adapter.allow_dynamic_output_shape_ops:
        raise fake_impls.DynamicOutputShapeException(func)
    rows, steps = adapter.create_unbacked_size(), adapter.create_unbacked_size()
    with mode:
        packed = inputs.new_empty((rows, *inputs.shape[2:]))
        return packed, torch.empty((steps,), dtype=torch.int64, device="cpu")


# -- connectionist losses ----------------------------------------------------------------------------------------------


def _ctc_loss(
    mode: Any,
    func: Any,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """The losses, and the table that backward reads: as wide as twice the longest target, and one more."""
    adapter = mode.shape_env
    if log_probs.dim() != 3:
        raise RuntimeError(f"Expected 3-dimensional tensor, but got {log_probs.dim()}-dimensional tensor for log_probs")
    if not isinstance(target_lengths, torch.Tensor):
        width = 2 * max(target_lengths, default=0) + 1
    elif adapter is None or not adapter.allow_dynamic_output_shape_ops:
        raise fake_impls.DynamicOutputShapeException(func)
    else:
        width = adapter.create_unbacked_size()
    steps, batch, _ = log_probs.shape
    with mode:
        return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, width))


def _row_major_gradient(
    mode: Any, func: Any, grad: torch.Tensor, x: torch.Tensor, *rest: Any, **named: Any
) -> torch.Tensor:
    """The gradient is row-major (aten/src/ATen/native: LossCTC.cpp, LossMultiMargin.cpp, LossMultiLabelMargin.cpp)."""
    with mode:
        return x.new_empty(x.shape)


# -- unique slices -------------------------------------------------------------------------------------------------------


def _unique_slices(mode: Any, func: Any, x: torch.Tensor, dim: int, *options: Any, **named: Any) -> Any:
    return _in_layout_of_slices(mode, _theirs(func)(mode, func, x, dim, *options, **named), dim)


def _unique_runs(
    mode: Any, func: Any, x: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> Any:
    at = dim + x.dim() if dim is not None and -x.dim() <= dim < 0 else dim
    found = _theirs(func)(mode, func, x, inverse, counts, at)
    return found if at is None else _in_layout_of_slices(mode, found, at)


def _in_layout_of_slices(mode: Any, found: tuple[torch.Tensor, ...], dim: int) -> tuple[torch.Tensor, ...]:
    slices, *others = found
    if slices.device.type != "cpu" or slices.dim() < 2:
        return found
    with mode:
        return slices.new_empty(slices.movedim(dim, 0).shape).movedim(0, dim), *others


# -- resampling ----------------------------------------------------------------------------------------------------------


def _nearest_neighbours(mode: Any, func: Any, x: torch.Tensor, output_size: Any, *scales: Any, **named: Any) -> Any:
    """The result for an empty input. PyTorch's kernel answers for all others, and for a wrong number of dimensions."""
    if x.dim() != len(output_size) + 2 or not any(type(size) is int and size == 0 for size in x.shape):
        return NotImplemented
    if any(size == 0 for size in x.shape[1:]):
        raise RuntimeError(f"Non-empty {x.dim()}D data tensor expected but got a tensor with sizes {list(x.shape)}")
    torch._check(
        all(size > 0 for size in output_size),
        lambda: f"Input and output sizes should be greater than 0, but got output size {list(output_size)}",
    )
    with mode:
        result = x.new_empty((*x.shape[:2], *output_size))
        return result.contiguous(memory_format=suggest_memory_format(x))


# -- gradients of resampling -------------------------------------------------------------------------------------------


def _resampling_gradient(
    mode: Any, func: Any, grad: torch.Tensor, output_size: Any, input_size: Any, *rest: Any, **named: Any
) -> Any:
    """A row-major tensor of `input_size`. C++ answers where all sizes are numbers."""
    if all(type(size) is int for size in (*grad.shape, *output_size, *input_size)):
        return NotImplemented
    _check_shape(grad, (*input_size[:2], *output_size))
    with mode:
        return grad.new_empty(input_size)


def _formatted_resampling_gradient(
    mode: Any, func: Any, grad: torch.Tensor, output_size: Any, input_size: Any, *rest: Any, **named: Any
) -> Any:
    """As `_resampling_gradient`, in the memory format of `grad` (aten/src/ATen/native/UpSampleBilinear2d.cpp, UpSampleTrilinear3d.cpp)."""
    gradient = _resampling_gradient(mode, func, grad, output_size, input_size)
    if gradient is NotImplemented:
        return gradient
    with mode:
        return gradient.contiguous(memory_format=suggest_memory_format(grad))


def _check_shape(grad: torch.Tensor, expected: Sequence[Any]) -> None:
    torch._check(
        grad.dim() == len(expected) and all(a == b for a, b in zip(grad.shape, expected, strict=True)),
        lambda: (
            f"Expected grad_output to have the same shape as output; output.size {list(expected)}, got {list(grad.shape)}"
        ),
    )


# -- zeros of tangents ---------------------------------------------------------------------------------------------------


def _zeros_in_layout(
    mode: Any, func: Any, x: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0
) -> Any:
    """Zeros with the sizes and strides of `other`, for each element of the leading batch dimensions of `x`. C++ answers where all sizes
    are numbers (aten/src/ATen/native/TensorFactories.cpp, _new_zeros_with_same_feature_meta)."""
    if _is_static(x) and _is_static(other):
        return NotImplemented
    batch = x.shape[:self_num_batch_dims]
    with mode:
        elements = other.new_zeros((*batch, other.untyped_storage().nbytes() // other.element_size()))
        strides = (*elements.stride()[:self_num_batch_dims], *other.stride())
        return elements.as_strided((*batch, *other.shape), strides, other.storage_offset())


# -- which operator has which ------------------------------------------------------------------------------------------


# -- dimensions --------------------------------------------------------------------------------------------------------


def _of_a_dimension(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Raises where `dim` is no dimension of the first argument. PyTorch answers all other calls."""
    place = next(i for i, argument in enumerate(func._schema.arguments) if argument.name == "dim")
    dim = args[place] if len(args) > place else kwargs.get("dim")
    count = max(args[0].dim(), 1) if args else 0
    if type(dim) is int and count and not -count <= dim < count:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-count}, {count - 1}], but got {dim})")
    return NotImplemented


def _theirs(func: Any) -> Callable[..., Any]:
    """PyTorch's fake kernel."""
    return fake_impls.op_implementations_dict[func]


@functools.cache
def kernels() -> Mapping[Any, Callable[..., Any]]:
    """Return overload -> kernel(mode, func, *args, **kwargs), for a `TreadleFakeMode`.

    A kernel that corrects PyTorch's result is left out where the installed release has no such kernel.
    """
    found = {op: kernel for name, kernel in _KERNELS.items() for op in corrected_by(name)}
    for name, kernel in _CORRECTING_KERNELS.items():
        found |= {op: kernel for op in corrected_by(name) if op in fake_impls.op_implementations_dict}
    return found


_KERNELS: Mapping[str, Callable[..., Any]] = {
    "fused encoder layer": _encoder_layer,
    "packed sequences": _packed_sequence,
    "connectionist losses": _ctc_loss,
    "row-major gradients": _row_major_gradient,
    "nearest neighbours of no images": _nearest_neighbours,
    "gradients of resampling": _resampling_gradient,
    "formats of resampling gradients": _formatted_resampling_gradient,
    "zeros of tangents": _zeros_in_layout,
    "dimensions out of range": _of_a_dimension,
    "counts of selected elements": _masked_select,
    "counts of nonzero elements": _nonzero,
}
"""By `fake_correction`."""

_CORRECTING_KERNELS: Mapping[str, Callable[..., Any]] = {
    "view strides": _view,
    "layouts of convolutions": _convolution,
    "sizes of slices": _slice,
    "unique slices": _unique_slices,
    "unique runs of slices": _unique_runs,
}
"""Those that call PyTorch's fake kernel."""

__all__ = ["batch_norm", "kernels", "view_strides"]
