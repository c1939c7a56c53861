"""Sizes and strides of views and layer norms with symbolic sizes, computed directly.

PyTorch's fake tensors decompose these operators when sizes are symbolic (`torch/_subclasses/fake_tensor.py`, `_dispatch_impl`): an
`unsqueeze` becomes four dispatches. Here each is one formula on expressions. A formula answers only where that takes no decision about
sizes; everything else goes on as before. It is entered in PyTorch's table of fast implementations, which is asked for symbolic
sizes only; for environments other than ours it does what PyTorch would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import in_kernel_invocation_manager

from treadle_shapes import rules
from treadle_shapes.layouts import Layout, all_same, dense_strides, is_dense, product, same
from treadle_shapes.nodes import Expr, IntLike
from treadle_shapes.torch import corrected_kernels

aten = torch.ops.aten


def _dims(dims: Sequence[int], count: int) -> list[int] | None:
    """Dimensions counted from the front, None for what the operator refuses."""
    found = [d + count if d < 0 else d for d in dims]
    return found if all(0 <= d < count for d in found) and len(set(found)) == len(found) else None


# -- a formula for each operator; None: not here -----------------------------------------------------------------------


def permute(t: Layout, dims: Sequence[int]) -> Layout | None:
    order = _dims(dims, len(t.sizes))
    if order is None or len(order) != len(t.sizes):
        return None
    return Layout([t.sizes[d] for d in order], [t.strides[d] for d in order])


def transpose(t: Layout, first: int, second: int) -> Layout | None:
    count = len(t.sizes)
    if not (-count <= first < count and -count <= second < count):
        return None
    order = list(range(count))
    order[first], order[second] = order[second], order[first]
    return permute(t, order)


def transpose_matrix(t: Layout) -> Layout | None:
    return transpose(t, 0, 1) if len(t.sizes) == 2 else None


def unsqueeze(t: Layout, dim: int) -> Layout | None:
    count = len(t.sizes)
    if not -count - 1 <= dim <= count:
        return None
    d = dim + count + 1 if dim < 0 else dim
    stride = t.sizes[d] * t.strides[d] if d < count else 1
    return Layout([*t.sizes[:d], 1, *t.sizes[d:]], [*t.strides[:d], stride, *t.strides[d:]])


def expand(t: Layout, sizes: Sequence[IntLike], *, implicit: bool = False) -> Layout | None:
    added = len(sizes) - len(t.sizes)
    if added < 0:
        return None
    if not t.sizes:
        return None if any(isinstance(n, int) and n < 0 for n in sizes) else Layout(list(sizes), [0] * added)
    result = Layout([], [])
    for d in reversed(range(len(sizes))):
        wanted = sizes[d]
        if d < added:
            if isinstance(wanted, int) and wanted < 0:
                return None
            old: IntLike = 1
            # As C++ has it: a new dimension of size 1 reaches as far as the one behind it.
            stride = result.sizes[0] * result.strides[0] if result.sizes else 1
        else:
            old, stride = t.sizes[d - added], t.strides[d - added]
        kept = same(old, wanted) or (isinstance(wanted, int) and wanted == -1)
        if not kept and not (isinstance(old, int) and old == 1):
            return None
        result.sizes.insert(0, old if kept else wanted)
        result.strides.insert(0, stride if kept else 0)
    return result


def view(t: Layout, sizes: Sequence[IntLike]) -> Layout | None:
    if not is_dense(t):
        return None
    total = product(t.sizes)
    open_dims = [d for d, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(open_dims) > 1 or any(isinstance(size, int) and size < -1 or size == 0 for size in sizes):
        return None
    found = list(sizes)
    if open_dims:
        known = product([size for d, size in enumerate(sizes) if d != open_dims[0]])
        quotient, rest = rules.split_multiple(total, known)
        if not same(rest, 0):
            return None
        found[open_dims[0]] = quotient
    return Layout(found, dense_strides(found)) if same(product(found), total) else None


# -- entering them -----------------------------------------------------------------------------------------------------


def _value(n: Any) -> IntLike:
    return n if isinstance(n, int) else n.node.value


def _layout(t: torch.Tensor) -> Layout:
    return Layout([_value(n) for n in t.shape], [_value(n) for n in t.stride()])


def _alias(mode: Any, func: Any, t: torch.Tensor, found: Layout) -> Any:
    wrap = mode.shape_env.wrap
    with in_kernel_invocation_manager(mode):
        out = torch.as_strided(t, [wrap(n) for n in found.sizes], [wrap(n) for n in found.strides], t.storage_offset())
    return mode.wrap_meta_outputs_with_default_device_logic(out, func, [t], None)


def _numbers(args: Sequence[Any]) -> list[Any] | None:
    """Arguments with expressions for symbolic numbers, None where one belongs to another engine."""
    found: list[Any] = []
    for arg in args:
        if isinstance(arg, (list, tuple, torch.Size)):
            inner = _numbers(arg)
            if inner is None:
                return None
            found.append(inner)
        elif isinstance(arg, int):
            found.append(arg)
        elif isinstance(arg, torch.SymInt) and isinstance(getattr(arg.node, "value", None), (int, Expr)):
            found.append(arg.node.value)
        else:
            return None
    return found


def _as_view(func: Any, formula: Callable[..., Layout | None], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    slow = _slow_path(func)

    def fast(mode: Any, t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_ours(mode.shape_env) and not kwargs and t.layout is torch.strided:
            numbers = _numbers(args)
            found = None if numbers is None else formula(_layout(t), *numbers)
            if found is not None:
                return _alias(mode, func, t, found)
        return slow(mode, t, *args, **kwargs)

    return fast


def _slow_path(func: Any) -> Callable[..., Any]:
    """What PyTorch does with the operator when there is no fast implementation."""
    registered = fake_impls.op_implementations_dict.get(func)
    if registered is not None:
        return lambda mode, *args, **kwargs: registered(mode, func, *args, **kwargs)
    decomposed = decomposition_table[func]

    def decompose(mode: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return decomposed(*args, **kwargs)

    return decompose


def _layer_norm(is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    """Dense float32 or float64 with parameters of the same dtype: a dense result, a mean and a deviation for each row."""
    slow = _slow_path(aten.native_layer_norm.default)

    def fast(mode: Any, t: torch.Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        if is_ours(mode.shape_env) and _is_plain_norm(t, shape, weight, bias):
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


VIEWS: dict[Any, Callable[..., Layout | None]] = {
    aten.permute.default: permute,
    aten.transpose.int: transpose,
    aten.t.default: transpose_matrix,
    aten.unsqueeze.default: unsqueeze,
    aten.expand.default: expand,
    aten.view.default: view,
    aten._unsafe_view.default: view,
}


def install(is_ours: Callable[[Any], bool]) -> None:
    """Enter the formulas; `is_ours` tells whether a mode's shape environment is one of this package."""
    corrected_kernels.install()  # before their kernels are looked up for what has no formula
    fast = fake_impls.get_fast_op_impls()
    if aten.native_layer_norm.default not in fast:
        fast.update({func: _as_view(func, formula, is_ours) for func, formula in VIEWS.items()})
        fast[aten.native_layer_norm.default] = _layer_norm(is_ours)
