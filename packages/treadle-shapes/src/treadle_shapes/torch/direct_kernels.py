"""Fake kernels of norms that give the results' metadata directly, of zeros, and checks that those of products leave out. Needs torch.

PyTorch's fake tensors decompose a batch norm (torch/_decomp/decompositions.py, native_batch_norm_helper). That takes about 25 dispatches,
5 ms, and gives a transposed input's layout to the result, where eager's result is always row-major or channels-last
(aten/src/ATen/native/Normalization.cpp, batch_norm_cpu, suggest_memory_format_contig).

The result of a group norm of images is row-major or channels-last in eager, too (aten/src/ATen/native/group_norm.cpp,
native_group_norm: the suggested memory format). PyTorch's decomposition gives the batch dimension of one channels-last image the stride of
a pixel (torch/_refs/__init__.py, native_group_norm, torch 2.11 to 2.13), which operators behind it do not take for channels-last.

The gradients of a layer norm are contiguous in eager (aten/src/ATen/native/layer_norm.cpp, layer_norm_backward_cpu, and
cuda/layer_norm_kernel.cu). PyTorch's decomposition keeps the strides of the gradient that it is given (torch 2.11 to 2.13).

`_efficientzerotensor` gives zeros that have memory.

A cast of a wrapped number, which the batching rules of vmap make, comes with the number itself; PyTorch's kernel takes no symbolic one
(torch/_decomp/decompositions.py, _to_copy, torch 2.13).

The fake kernels of `mm`, `addmm`, `mv` and `addbmm` accept matrices of different dtypes, for which eager raises (torch 2.11 to 2.13).

A kernel returns NotImplemented for calls that it leaves to PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import is_contiguous_for_memory_format_or_false, is_contiguous_or_false
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes.torch import constants

aten = torch.ops.aten
_LOW_FLOATS = (torch.float16, torch.bfloat16)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _is_plain(x: Any, parameters: tuple[Any, ...]) -> bool:
    """Whether these are an image-like CPU tensor of floats and parameters of one dtype with one value for each of its channels."""
    given = [p for p in parameters if p is not None]
    if any(type(t) is not FakeTensor for t in (x, *given)) or x.device.type != "cpu" or x.dim() < 2:
        return False
    if not x.is_floating_point() or x.layout is not torch.strided:
        return False
    return all(p.dim() == 1 and p.shape[0] == x.shape[1] and p.device == x.device for p in given)


def _result(x: torch.Tensor) -> torch.Tensor:
    """The result of a batch norm. Where a size is 1, channels-last is what `is_contiguous` says, which does not look at its stride."""
    layout = torch._prims_common.suggest_memory_format(x)
    if x.dim() in _CHANNELS_LAST and any(type(n) is int and n == 1 for n in x.shape):
        channels_last = _CHANNELS_LAST[x.dim()]
        is_last = not is_contiguous_or_false(x) and is_contiguous_for_memory_format_or_false(
            x, memory_format=channels_last
        )
        layout = channels_last if is_last else torch.contiguous_format
    return torch.empty_like(x, memory_format=layout)


def _inference(mode: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    """Return (result, saved mean, saved deviation).

    On the CPU, the saved statistics of eval mode are empty tensors. On CUDA, those of 16 bits are kept in float32
    (aten/src/ATen/native/cuda/Normalization.cu, batch_norm_cuda); PyTorch's decomposition gives them x's dtype in some releases.
    """
    if mean is None or var is None:
        return NotImplemented
    with mode:
        if _is_plain(x, (weight, bias, mean, var)):
            return _result(x), x.new_empty(0), x.new_empty(0)
        if type(x) is FakeTensor and x.device.type == "cuda" and x.dtype in _LOW_FLOATS and x.dim() >= 2:
            return _result(x), *(x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(2))
    return NotImplemented


def _training(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, Any, Any] | None:
    """Return (result, saved mean, saved deviation) inside the mode, or None."""
    parameters = (weight, bias, mean, var)
    if x.dtype in _LOW_FLOATS and (mean is None) == (var is None):
        return _training_low(x, *parameters, momentum, eps)
    if x.dtype not in (torch.float32, torch.float64) or not _is_plain(x, parameters):
        return None
    if any(p is not None and p.dtype != x.dtype for p in parameters):
        return None
    return _result(x), x.new_empty(x.shape[1]), x.new_empty(x.shape[1])


def _training_low(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    """Return (result, saved mean, saved deviation) of float16 or bfloat16 with the dtypes of the kernels.

    PyTorch's decomposition gives the saved statistics another dtype where the parameters are float32, and computes running
    statistics of low precision in float32.
    """
    functional = aten._native_batch_norm_legit_functional.default
    rule = decomposition_table[aten.native_batch_norm.default if mean is None else functional]
    out, *saved = rule(x, weight, bias, mean, var, True, momentum, eps)[:3]
    dtype = _saved_dtype(x, weight, bias, mean, var)
    if _is_plain(x, (weight, bias, mean, var)):
        out = _result(x)  # the decomposition keeps the order of a transposed input
    return out, saved[0].to(dtype), saved[1].to(dtype)


def _saved_dtype(x: Any, *parameters: Any) -> torch.dtype:
    """The dtype of the statistics that a batch norm of 16 bits saves for its gradients."""
    in_float32 = x.device.type == "cuda" or any(p is not None and p.dtype == torch.float32 for p in parameters)
    return torch.float32 if in_float32 else x.dtype


def _native(
    mode: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if not training:
        return _inference(mode, x, weight, bias, mean, var, momentum, eps)
    with mode:
        # The kernel writes the running statistics, but counts up no version: its schema declares no write.
        found = _training(x, weight, bias, mean, var, momentum, eps)
        return NotImplemented if found is None else found


def _functional(
    mode: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    if not training and x.dtype not in _LOW_FLOATS:
        return NotImplemented
    with mode:
        if training:
            found = _training(x, weight, bias, mean, var, momentum, eps)
        else:  # PyTorch's decomposition gives running statistics of low precision as float32
            rule = decomposition_table[aten._native_batch_norm_legit_functional.default]
            out, *saved = rule(x, weight, bias, mean, var, False, momentum, eps)[:3]
            found = out, *(t.to(_saved_dtype(x, weight, bias, mean, var)) for t in saved)
        return NotImplemented if found is None else (*found, torch.empty_like(mean), torch.empty_like(var))


def _with_update(mode: Any, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    """PyTorch's decomposition gives running statistics of low precision as float32, and saved ones x's dtype."""
    if x.dtype not in _LOW_FLOATS:
        return NotImplemented
    with mode:
        rule = decomposition_table[aten._batch_norm_with_update_functional.default]
        out, *saved, reserve, new_mean, new_var = rule(x, weight, bias, mean, var, momentum, eps)
        dtype = _saved_dtype(x, weight, bias, mean, var)
        return out, *(t.to(dtype) for t in saved), reserve, new_mean.to(mean.dtype), new_var.to(var.dtype)


def _without_statistics(mode: Any, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    with mode:
        found = _training(x, weight, bias, None, None, momentum, eps)
        return NotImplemented if found is None else found


def _check_one_dtype(mode: Any, *matrices: Any, **numbers: Any) -> Any:
    dtypes = [t.dtype for t in matrices if isinstance(t, torch.Tensor)]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise RuntimeError(f"expected matrices of one dtype, but got {', '.join(map(str, dtypes))}")
    return NotImplemented


def _zeros(mode: Any, size: Any, **options: Any) -> torch.Tensor:
    """Return zeros with memory of their own.

    Kernels for zeros without memory, which derivatives make, ask for sizes as Python numbers, and raise where the other operand is a tensor
    that several transforms of `torch.func` have wrapped (aten/src/ATen/native/BinaryOps.cpp, mul_zerotensor: `self.to(device)`).
    """
    with mode:
        return torch.zeros(size, **options)


def _layer_norm_gradients(
    mode: Any, grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, wanted: Any
) -> Any:
    with mode:
        return tuple(
            like.new_empty(like.shape) if like is not None and wants else None
            for like, wants in zip((x, weight, bias), wanted, strict=True)
        )


def _group_norm(
    mode: Any, x: Any, weight: Any, bias: Any, images: Any, channels: Any, pixels: Any, groups: int, eps: float
) -> Any:
    """Return (result, mean, deviation) of images on the CPU. PyTorch's decomposition answers for all else, and refuses wrong groups."""
    if x.dim() not in _CHANNELS_LAST or not _is_plain(x, (weight, bias)) or channels % groups:
        return NotImplemented
    if any(p is not None and p.dtype != x.dtype for p in (weight, bias)):
        return NotImplemented
    with mode:
        layout = torch._prims_common.suggest_memory_format(x)
        return torch.empty_like(x, memory_format=layout), *(x.new_empty((images, groups)) for _ in range(2))


def _cast(mode: Any, x: Any, *, dtype: Any = None, **options: Any) -> Any:
    if not isinstance(x, _SYMBOLIC_NUMBERS) or dtype is None:
        return NotImplemented
    with mode:
        return torch.scalar_tensor(x, dtype=dtype, device=options.get("device") or "cpu")


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm_backward.default: _layer_norm_gradients,
    aten.native_batch_norm.default: _native,
    aten._native_batch_norm_legit_no_training.default: _inference,
    aten._native_batch_norm_legit_functional.default: _functional,
    aten._native_batch_norm_legit.no_stats: _without_statistics,
    aten._batch_norm_with_update_functional.default: _with_update,
    aten.native_group_norm.default: _group_norm,
    aten.mm.default: _check_one_dtype,
    aten.addmm.default: _check_one_dtype,
    aten.mv.default: _check_one_dtype,
    aten.addbmm.default: _check_one_dtype,
    aten._efficientzerotensor.default: _zeros,
    aten._to_copy.default: _cast,
    aten.lift_fresh.default: constants.lift,
    aten.lift_fresh_copy.default: constants.lift,
}
"""Overload -> kernel(mode, *args, **kwargs), for all sizes."""
