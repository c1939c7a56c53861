"""Fake kernels of views, layer norms and arithmetic with numbers that compute symbolic sizes and strides directly. Needs torch.

PyTorch's fake tensors decompose these operators when sizes are symbolic (`torch/_subclasses/fake_tensor.py`, `_dispatch_impl`): an
`unsqueeze` becomes four dispatches. Here one layout function computes the result. It answers only where that takes no decision about
sizes; PyTorch's own code handles all other calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import is_contiguous_for_memory_format_or_false
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import in_kernel_invocation_manager

from treadle_shapes.layouts import Layout, all_same, is_dense
from treadle_shapes.torch import corrected_kernels
from treadle_shapes.torch.operators.declare import DECLARED, corrected_by, families_with
from treadle_shapes.torch.ours import TreadleShapeEnv, env_of, raw_expr

aten = torch.ops.aten


def _layout(t: torch.Tensor) -> Layout:
    return Layout([raw_expr(n) for n in t.shape], [raw_expr(n) for n in t.stride()])


def _alias(mode: Any, func: Any, t: torch.Tensor, found: Layout) -> Any:
    wrap = mode.shape_env.wrap
    with in_kernel_invocation_manager(mode):
        out = torch.as_strided(t, [wrap(n) for n in found.sizes], [wrap(n) for n in found.strides], t.storage_offset())
    return mode.wrap_meta_outputs_with_default_device_logic(out, func, [t], None)


def _numbers(args: Sequence[Any]) -> list[Any] | None:
    """Return the arguments with expressions for symbolic numbers, or None where one is no number of Treadle."""
    found: list[Any] = []
    for arg in args:
        if isinstance(arg, (list, tuple, torch.Size)):
            inner = _numbers(arg)
            if inner is None:
                return None
            found.append(inner)
        elif isinstance(arg, int):
            found.append(arg)
        elif isinstance(arg, torch.SymInt) and env_of(arg) is not None:
            found.append(raw_expr(arg))
        else:
            return None
    return found


def _as_view(func: Any, formula: Callable[..., Layout | None]) -> Callable[..., Any]:
    slow = _slow_path(func)

    def fast(mode: Any, t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(mode.shape_env, TreadleShapeEnv) and not kwargs and t.layout is torch.strided:
            numbers = _numbers(args)
            found = None if numbers is None else formula(_layout(t), *numbers)
            if found is not None:
                return _alias(mode, func, t, found)
        return slow(mode, t, *args, **kwargs)

    return fast


def _slow_path(func: Any) -> Callable[..., Any]:
    """Return what the mode runs when there is no fast implementation of the operator."""
    registered = corrected_kernels.kernels().get(func) or fake_impls.op_implementations_dict.get(func)
    if registered is not None:
        return lambda mode, *args, **kwargs: registered(mode, func, *args, **kwargs)
    decomposed = decomposition_table[func]

    def decompose(mode: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return decomposed(*args, **kwargs)

    return decompose


def _layer_norm() -> Callable[..., Any]:
    """Return the kernel of layer norm. Dense float32 and float64 inputs have a dense result and a mean and deviation for each row."""
    slow = _slow_path(aten.native_layer_norm.default)

    def fast(mode: Any, t: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        if isinstance(mode.shape_env, TreadleShapeEnv) and _is_plain_norm(t, shape, weight, bias):
            rows = [*t.shape[: t.dim() - len(shape)], *[1] * len(shape)]
            with mode:
                return torch.empty(t.shape, dtype=t.dtype, device=t.device), *[
                    torch.empty(rows, dtype=t.dtype, device=t.device) for _ in range(2)
                ]
        return slow(mode, t, shape, weight, bias, eps)

    return fast


def _is_plain_norm(t: torch.Tensor, shape: Any, weight: torch.Tensor | None, bias: torch.Tensor | None) -> bool:
    sizes = _numbers(shape)
    if not sizes or len(sizes) > t.dim() or t.dtype not in (torch.float32, torch.float64) or t.device.type != "cpu":
        return False
    layout = _layout(t)
    for p in (weight, bias):
        if p is not None and (p.dtype != t.dtype or p.device != t.device or not all_same(_layout(p).sizes, sizes)):
            return False
    return is_dense(layout) and all_same(layout.sizes[-len(sizes) :], sizes)


def _beside_number(pytorch: Callable[..., Any]) -> Callable[..., Any]:
    """Return the kernel of an arithmetic operator. See `corrected_kernels`, "layouts beside numbers"."""

    def fast(mode: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        result = pytorch(mode, *args, **kwargs)
        if len(tensors) != 1 or not _is_one_image(tensors[0]):
            return result
        with mode:
            return torch.empty_strided(result.shape, tensors[0].stride(), dtype=result.dtype, device=result.device)

    return fast


def _is_one_image(x: torch.Tensor) -> bool:
    """Whether it is channels-last, but for the stride of its batch dimension of 1, which is that of a pixel."""
    if x.dim() not in (4, 5) or any(type(n) is not int for n in (*x.shape[:2], *x.stride()[:2])):
        return False
    if x.shape[0] != 1 or x.stride()[:2] != (x.shape[1], 1):
        return False
    channels_last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    return is_contiguous_for_memory_format_or_false(x, memory_format=channels_last)


def _view_functions() -> dict[Any, Callable[..., Layout | None]]:
    """Return overload -> layout function, for all views that have one."""
    return {
        op: function
        for family in families_with("shape_functions")
        for op, function in DECLARED[family].facts["shape_functions"].items()
        if isinstance(op, torch._ops.OpOverload)
    }


def kernels() -> dict[Any, Callable[..., Any]]:
    """Return overload -> kernel(mode, *args, **kwargs), for a `TreadleFakeMode` and arguments with symbolic sizes."""
    found = {func: _as_view(func, formula) for func, formula in _view_functions().items()}
    found[aten.native_layer_norm.default] = _layer_norm()
    theirs = fake_impls.get_fast_op_impls()
    found |= {op: _beside_number(theirs[op]) for op in corrected_by("layouts beside numbers") if op in theirs}
    return found
