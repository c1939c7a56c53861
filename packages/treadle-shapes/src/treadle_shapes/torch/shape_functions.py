"""Shape functions of common calls on fake tensors. They compute sizes and strides without running a kernel. Needs torch.

    linear(x, weight, bias)     # Fresh(sizes=[b, s, 64], strides=[s*64, 64, 1], dtype=float32)

A fake kernel costs 1 to 5 ms the first time (its decompositions, their dispatches, PyTorch's own caches), a shape function 0.1 ms. A
shape function takes the arguments of the call. It raises NotAnswered where the answer takes a decision about sizes (except for the end of
a slice), and, where strides matter, for tensors that are not row-major and dense. `operators` declares the shape function of each call;
`shape_inference.infer` looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes.errors import ShapesError
from treadle_shapes.layouts import Layout, all_same, dense_strides, is_dense, same
from treadle_shapes.logic import Le
from treadle_shapes.nodes import Expr, IntLike
from treadle_shapes.torch import view_layouts


class Fresh(NamedTuple):
    """A dense result with memory of its own."""

    sizes: list[IntLike]
    dtype: torch.dtype

    @property
    def strides(self) -> list[IntLike]:
        return dense_strides(self.sizes)


class Alias(NamedTuple):
    """A result in the memory of a tensor among the arguments; `offset` is absolute."""

    tensor: torch.Tensor
    sizes: list[IntLike]
    strides: list[IntLike]
    offset: IntLike


class NotAnswered(Exception):
    """The shape function has no answer for these arguments."""


# -- reading arguments -------------------------------------------------------------------------------------------------


def number(n: Any) -> IntLike:
    """Return a size, stride or dimension: an int, or the expression under a SymInt of Treadle. Raises NotAnswered."""
    if type(n) is int:
        return n
    value = getattr(n.node, "value", None) if isinstance(n, torch.SymInt) else None
    if not isinstance(value, (int, Expr)):
        raise NotAnswered
    return value


def _tensor(t: Any) -> Layout:
    """Return the layout of a plain tensor that has elements. Raises NotAnswered."""
    if type(t) is not FakeTensor or t.layout is not torch.strided or t.is_neg() or t.is_conj():
        raise NotAnswered
    _need(all(map(_is_positive, t.shape)))
    return Layout([number(n) for n in t.shape], [number(n) for n in t.stride()])


def _is_positive(n: Any) -> bool:
    if type(n) is int:
        return n > 0
    value = number(n)
    return value > 0 if isinstance(value, int) else n.node.env.facts.known_ranges.interval(value)[0] >= 1


def _dense(t: Any) -> Layout:
    layout = _tensor(t)
    if not layout.sizes or not is_dense(layout):
        raise NotAnswered
    return layout


def _dimension(dim: Any, count: int) -> int:
    if type(dim) is not int or not -count <= dim < count:
        raise NotAnswered
    return dim % count


def _need(condition: Any) -> None:
    if not condition:
        raise NotAnswered


def _sizes(given: Sequence[Any]) -> list[IntLike]:
    """Return sizes that were given one by one or as one list."""
    _need(len(given) > 0)
    if len(given) == 1 and isinstance(given[0], (tuple, list)):
        given = given[0]
    return [number(n) for n in given]


def _alias(t: torch.Tensor, found: Layout | None, offset: IntLike = 0) -> Alias:
    if found is None:
        raise NotAnswered
    return Alias(t, found.sizes, found.strides, number(t.storage_offset()) + offset)


# -- pointwise ---------------------------------------------------------------------------------------------------------


def _broadcast(layouts: Sequence[Layout]) -> list[IntLike]:
    """Return the broadcast sizes of dense tensors. One tensor must have all of them: only then is the result dense, too."""
    largest = max(layouts, key=lambda layout: len(layout.sizes)).sizes
    for layout in layouts:
        if len(layout.sizes) == len(largest) and all(
            same(size, 1) or not same(n, 1) for n, size in zip(layout.sizes, largest, strict=True)
        ):
            largest = layout.sizes
    for layout in layouts:
        for size, wanted in zip(reversed(layout.sizes), reversed(largest), strict=False):
            _need(same(size, wanted) or same(size, 1))
    return largest


def _is_weak(scalar: Any, dtype: torch.dtype) -> bool:
    """Whether a Python number leaves the dtype of the result unchanged."""
    if isinstance(scalar, (float, torch.SymFloat)):
        return dtype.is_floating_point
    return type(scalar) in (int, torch.SymInt) and dtype is not torch.bool


def binary(result: Callable[[torch.dtype], torch.dtype | None], reflects: bool = False) -> Callable[..., Fresh]:
    """Return the shape function for two tensors of one dtype, or a tensor and a number.

    result: maps their dtype to that of the result, None for no answer. reflects: the number may come first, as in Python's operators.
    """

    def formula(input: Any, other: Any) -> Fresh:
        _need(reflects or isinstance(input, torch.Tensor))
        tensors = [t for t in (input, other) if isinstance(t, torch.Tensor)]
        dtype = tensors[0].dtype
        _need(all(t.dtype is dtype and t.device == tensors[0].device for t in tensors))
        _need(all(isinstance(t, torch.Tensor) or _is_weak(t, dtype) for t in (input, other)))
        out = result(dtype)
        _need(out is not None)
        return Fresh(_broadcast([_dense(t) for t in tensors]), out)  # type: ignore[arg-type]

    return formula


def number_type(dtype: torch.dtype) -> torch.dtype | None:
    return None if dtype is torch.bool else dtype


def float_type(dtype: torch.dtype) -> torch.dtype | None:
    return dtype if dtype.is_floating_point else None


def bit_type(dtype: torch.dtype) -> torch.dtype | None:
    return None if dtype.is_floating_point or dtype.is_complex else dtype


def power(input: Any, exponent: Any) -> Fresh:
    _need(isinstance(input, torch.Tensor) and isinstance(exponent, (int, float)) and input.dtype.is_floating_point)
    return Fresh(_dense(input).sizes, input.dtype)


def unary(result: Callable[[torch.dtype], torch.dtype | None]) -> Callable[..., Fresh]:
    def formula(input: Any) -> Fresh:
        layout, dtype = _dense(input), result(input.dtype)
        _need(dtype is not None)
        return Fresh(layout.sizes, dtype)  # type: ignore[arg-type]

    return formula


def gelu(input: Any, approximate: str = "none") -> Fresh:
    _need(approximate in ("none", "tanh"))
    return unary(float_type)(input)


def activation(input: Any, inplace: bool = False) -> Fresh:
    _need(inplace is False)
    return unary(float_type)(input)


def softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Fresh:
    layout = _dense(input)
    _dimension(dim, len(layout.sizes))
    _need(input.dtype.is_floating_point and (dtype is None or dtype.is_floating_point))
    return Fresh(layout.sizes, dtype or input.dtype)


def to_dtype(dtype: torch.dtype) -> Callable[..., Fresh | torch.Tensor]:
    def formula(input: Any) -> Fresh | torch.Tensor:
        return convert(input, dtype)

    return formula


def convert(input: Any, dtype: Any) -> Fresh | torch.Tensor:
    _need(isinstance(dtype, torch.dtype) and not (input.dtype.is_complex or dtype.is_complex))
    layout = _tensor(input)
    if input.dtype is dtype:
        return input
    _need(bool(layout.sizes) and is_dense(layout))
    return Fresh(layout.sizes, dtype)


# -- rows -------------------------------------------------------------------------------------------------------------


def linear(input: Any, weight: Any, bias: Any = None) -> Fresh:
    x, w = _tensor(input), _tensor(weight)
    _need(len(x.sizes) == 2 or (len(x.sizes) > 2 and is_dense(x)))
    _need(len(w.sizes) == 2 and same(x.sizes[-1], w.sizes[1]))
    _need(input.dtype.is_floating_point and input.dtype is weight.dtype and input.device == weight.device)
    if bias is not None:
        _need(all_same(_tensor(bias).sizes, w.sizes[:1]) and bias.dtype is input.dtype and bias.device == input.device)
    return Fresh([*x.sizes[:-1], w.sizes[0]], input.dtype)


def addmm(input: Any, mat1: Any, mat2: Any) -> Fresh:
    a, b = _tensor(mat1), _tensor(mat2)
    _need(len(a.sizes) == len(b.sizes) == 2 and same(a.sizes[1], b.sizes[0]))
    _need(all_same(_tensor(input).sizes, b.sizes[1:]) and mat1.dtype.is_floating_point)
    _need(all(t.dtype is mat1.dtype and t.device == mat1.device for t in (input, mat2)))
    return Fresh([a.sizes[0], b.sizes[1]], mat1.dtype)


def embedding(
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Fresh:
    table = _tensor(weight)
    _need(max_norm is None and len(table.sizes) == 2)
    rows = table.sizes[0]
    _need(padding_idx is None or (type(padding_idx) is int and isinstance(rows, int) and -rows <= padding_idx < rows))
    _need(input.dtype in (torch.int64, torch.int32) and input.device == weight.device)
    return Fresh([*_tensor(input).sizes, table.sizes[1]], weight.dtype)


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Fresh:
    layout, rows = _tensor(input), _sizes([normalized_shape])  # the result is row-major whatever the input is
    _need(input.dtype.is_floating_point and 0 < len(rows) <= len(layout.sizes))
    _need(all_same(layout.sizes[-len(rows) :], rows))
    _need_parameters(input, rows, weight, bias)
    return Fresh(layout.sizes, input.dtype)


def group_norm(input: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Fresh:
    layout = _dense(input)
    _need(input.dtype.is_floating_point and len(layout.sizes) >= 2 and type(num_groups) is int and num_groups > 0)
    channels = layout.sizes[1]
    _need(isinstance(channels, int) and channels % num_groups == 0 and channels > num_groups)
    _need_parameters(input, [channels], weight, bias)
    return Fresh(layout.sizes, input.dtype)


def _need_parameters(input: Any, sizes: Sequence[IntLike], *parameters: Any) -> None:
    """Raise NotAnswered where parameters that are given have other sizes, another dtype or another device."""
    for p in parameters:
        _need(p is None or (p.dtype is input.dtype and p.device == input.device and all_same(_tensor(p).sizes, sizes)))


def mean(input: Any, dim: Any = None, keepdim: bool = False) -> Fresh:
    layout = _dense(input)
    _need(input.dtype.is_floating_point and type(keepdim) is bool)
    d = _dimension(dim, len(layout.sizes))
    kept = [1] if keepdim else []
    sizes = [*layout.sizes[:d], *kept, *layout.sizes[d + 1 :]]
    _need(bool(sizes))
    return Fresh(sizes, input.dtype)


def gather(input: Any, dim: Any, index: Any) -> Fresh:
    layout, places = _tensor(input), _tensor(index)
    d = _dimension(dim, len(layout.sizes))
    _need(len(places.sizes) == len(layout.sizes) and index.dtype is torch.int64 and index.device == input.device)
    _need(all(same(a, b) for e, (a, b) in enumerate(zip(layout.sizes, places.sizes, strict=True)) if e != d))
    return Fresh(places.sizes, input.dtype)


def cat(tensors: Any, dim: Any = 0) -> Fresh:
    _need(isinstance(tensors, (tuple, list)) and len(tensors) > 0)
    parts: list[Any] = list(tensors)
    first, *others = layouts = [_dense(t) for t in parts]
    d = _dimension(dim, len(first.sizes))
    _need(all(t.dtype is parts[0].dtype and t.device == parts[0].device for t in parts))
    for layout in others:
        _need(all_same(layout.sizes[:d], first.sizes[:d]) and all_same(layout.sizes[d + 1 :], first.sizes[d + 1 :]))
    along: IntLike = 0
    for layout in layouts:
        along = along + layout.sizes[d]
    return Fresh([*first.sizes[:d], along, *first.sizes[d + 1 :]], parts[0].dtype)


# -- views -------------------------------------------------------------------------------------------------------------


def view(input: Any, *shape: Any) -> Alias:
    layout, sizes = _tensor(input), _sizes(shape)
    opened = [d for d, size in enumerate(sizes) if same(size, -1)]
    if len(sizes) == len(layout.sizes) and len(opened) <= 1:
        kept = [
            size if d in opened else wanted for d, (size, wanted) in enumerate(zip(layout.sizes, sizes, strict=True))
        ]
        # The strides of sizes of 1 may change.
        if all_same(kept, layout.sizes) and 1 not in kept:
            return _alias(input, layout)
    return _alias(input, view_layouts.view(layout, sizes))


def expand(input: Any, *sizes: Any) -> Alias:
    return _alias(input, view_layouts.expand(_tensor(input), _sizes(sizes)))


def transpose(input: Any, dim0: Any, dim1: Any) -> Alias:
    layout = _tensor(input)
    first, second = (_dimension(d, len(layout.sizes)) for d in (dim0, dim1))
    return _alias(input, view_layouts.transpose(layout, first, second))


def permute(input: Any, *dims: Any) -> Alias:
    _need(len(dims) > 0)
    return permute_by(input, dims)


def permute_by(input: Any, dims: Any) -> Alias:
    _need(isinstance(dims, (tuple, list)))
    order = _sizes(dims) if dims else []
    _need(all(isinstance(d, int) for d in order))
    return _alias(input, view_layouts.permute(_tensor(input), order))  # type: ignore[arg-type]


def unsqueeze(input: Any, dim: Any) -> Alias:
    layout = _tensor(input)
    return _alias(input, view_layouts.unsqueeze(layout, _dimension(dim, len(layout.sizes) + 1)))


def contiguous(input: Any) -> torch.Tensor:
    _need(is_dense(_tensor(input)))
    return input


def getitem(input: Any, index: Any) -> Alias:
    """Index by slices, None and positions, in PyTorch's order."""
    layout = _tensor(input)
    parts: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    rest = len(layout.sizes) - sum(part is not None and part is not ... for part in parts)
    _need(rest >= 0 and sum(part is ... for part in parts) <= 1)
    dim, offset = 0, 0
    for part in parts:
        if part is ...:
            dim += rest
            continue
        if part is None:
            unsqueezed = view_layouts.unsqueeze(layout, dim)
            assert unsqueezed is not None, "a dimension in range"
            layout, dim = unsqueezed, dim + 1
            continue
        size, stride = layout.sizes[dim], layout.strides[dim]
        if type(part) is int:
            # Sizes are at least 1, so the first and last positions exist.
            _need(part in (0, -1) or (isinstance(size, int) and -size <= part < size))
            offset = offset + stride * (part if part >= 0 else size + part)
            layout = Layout(
                [*layout.sizes[:dim], *layout.sizes[dim + 1 :]], [*layout.strides[:dim], *layout.strides[dim + 1 :]]
            )
            continue
        _need(type(part) is slice)
        start, length = _slice(part, size)
        offset = offset + stride * start
        layout = Layout([*layout.sizes[:dim], length, *layout.sizes[dim + 1 :]], list(layout.strides))
        dim += 1
    return _alias(input, layout, offset)


def _slice(part: slice, size: IntLike) -> tuple[int, IntLike]:
    """Return (start, length) of a full slice, of a slice from 0 to a symbolic end, or of constant ends in a constant size."""
    start, stop = part.start, part.stop
    _need(part.step is None or (type(part.step) is int and part.step == 1))
    _need(start is None or type(start) is int)
    if stop is None and start in (None, 0):
        return 0, size
    _need(isinstance(size, int))
    if isinstance(stop, torch.SymInt) and start in (None, 0):
        _need(size > 1 and _is_positive(stop))
        _decide(stop, size)
        return 0, number(stop)
    _need(stop is None or type(stop) is int)
    first, end, _ = part.indices(size)  # type: ignore[arg-type]
    _need(first < end)
    return first, end - first


def _decide(stop: torch.SymInt, size: IntLike) -> None:
    """Decide that a slice ends within its dimension. PyTorch's kernel needs the same guard."""
    env, within = stop.node.env, Le(number(stop), size)  # type: ignore[attr-defined]
    try:
        _need(bool(env.hint(within)) and env.decide(within))
    except ShapesError:
        raise NotAnswered from None
