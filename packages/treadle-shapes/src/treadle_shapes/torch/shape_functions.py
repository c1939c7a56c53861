"""Layouts of the results of common calls on fake tensors, as formulas on sizes and strides: no kernel is run. Needs torch.

    answer(torch.nn.functional.linear, (x, weight, bias), {})     # Fresh(sizes=[b, s, 64], strides=[s*64, 64, 1], dtype=float32)

A fake kernel costs 1 to 5 ms the first time (its decompositions, their dispatches, PyTorch's own caches), a formula 0.1 ms. Each
answers only what it is sure of without a decision about sizes (but for the end of a slice), for tensors that are dense in row-major
order where that matters, and otherwise says None: then the kernel is asked. That they agree with the real operators is checked in
tests/test_formulas.py.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes.errors import ShapesError
from treadle_shapes.layouts import Layout, all_same, dense_strides, is_dense, same
from treadle_shapes.logic import Le
from treadle_shapes.nodes import Expr, IntLike
from treadle_shapes.torch import fast_kernels

F = torch.nn.functional


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


class _Open(Exception):
    """Not for a formula."""


def answer(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Fresh | Alias | torch.Tensor | None:
    """What `target` (a function, or a method's name) gives: a new tensor, a view, or the very argument. None: not known here.

    The tensors among the arguments are plain strided FakeTensors, whose symbolic sizes are at least 1. With gradients allowed no result
    that would need any is answered, and no view, of which autograd would know.
    """
    formula = FORMULAS.get(target)
    if formula is None:
        return None
    try:
        bound = _signature(formula).bind(*args, **kwargs)
    except TypeError:
        return None
    try:
        found = formula(*bound.args, **bound.kwargs)
    except _Open:
        return None
    if torch.is_grad_enabled() and not isinstance(found, torch.Tensor):
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        if isinstance(found, Alias) or any(t.requires_grad for t in tensors):
            return None
    return found


_signature = functools.cache(inspect.signature)


# -- reading arguments -------------------------------------------------------------------------------------------------


def number(n: Any) -> IntLike:
    """A size, stride or dimension: an int, or the expression under a SymInt of ours."""
    if type(n) is int:
        return n
    value = getattr(n.node, "value", None) if isinstance(n, torch.SymInt) else None
    if not isinstance(value, (int, Expr)):
        raise _Open
    return value


def _tensor(t: Any) -> Layout:
    """The layout of a plain tensor that has elements."""
    if type(t) is not FakeTensor or t.layout is not torch.strided or t.is_neg() or t.is_conj():
        raise _Open
    _need(all(map(_is_positive, t.shape)))
    return Layout([number(n) for n in t.shape], [number(n) for n in t.stride()])


def _is_positive(n: Any) -> bool:
    if type(n) is int:
        return n > 0
    value = number(n)
    return value > 0 if isinstance(value, int) else n.node.env.facts.known.interval(value)[0] >= 1


def _dense(t: Any) -> Layout:
    layout = _tensor(t)
    if not layout.sizes or not is_dense(layout):
        raise _Open
    return layout


def _dimension(dim: Any, count: int) -> int:
    if type(dim) is not int or not -count <= dim < count:
        raise _Open
    return dim % count


def _need(condition: Any) -> None:
    if not condition:
        raise _Open


def _sizes(given: Sequence[Any]) -> list[IntLike]:
    """Sizes given one by one, or as one list."""
    _need(len(given) > 0)
    if len(given) == 1 and isinstance(given[0], (tuple, list)):
        given = given[0]
    return [number(n) for n in given]


def _alias(t: torch.Tensor, found: Layout | None, offset: IntLike = 0) -> Alias:
    if found is None:
        raise _Open
    return Alias(t, found.sizes, found.strides, number(t.storage_offset()) + offset)


# -- element by element ------------------------------------------------------------------------------------------------


def _broadcast(layouts: Sequence[Layout]) -> list[IntLike]:
    """The sizes of the result of dense tensors, one of which has them all: then the result is dense, too."""
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
    """Whether a Python number takes part without changing the dtype of the result."""
    if isinstance(scalar, (float, torch.SymFloat)):
        return dtype.is_floating_point
    return type(scalar) in (int, torch.SymInt) and dtype is not torch.bool


def _binary(result: Callable[[torch.dtype], torch.dtype | None], reflects: bool = False) -> Callable[..., Fresh]:
    """Two tensors of one dtype, or a tensor and a number; `result`: the dtype that comes out, None for what is not answered.

    reflects: the number may come first, as in Python's operators.
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


def _number_type(dtype: torch.dtype) -> torch.dtype | None:
    return None if dtype is torch.bool else dtype


def _float_type(dtype: torch.dtype) -> torch.dtype | None:
    return dtype if dtype.is_floating_point else None


def _bit_type(dtype: torch.dtype) -> torch.dtype | None:
    return None if dtype.is_floating_point or dtype.is_complex else dtype


def _power(input: Any, exponent: Any) -> Fresh:
    _need(isinstance(input, torch.Tensor) and isinstance(exponent, (int, float)) and input.dtype.is_floating_point)
    return Fresh(_dense(input).sizes, input.dtype)


def _unary(result: Callable[[torch.dtype], torch.dtype | None]) -> Callable[..., Fresh]:
    def formula(input: Any) -> Fresh:
        layout, dtype = _dense(input), result(input.dtype)
        _need(dtype is not None)
        return Fresh(layout.sizes, dtype)  # type: ignore[arg-type]

    return formula


def _gelu(input: Any, approximate: str = "none") -> Fresh:
    _need(approximate in ("none", "tanh"))
    return _unary(_float_type)(input)


def _activation(input: Any, inplace: bool = False) -> Fresh:
    _need(inplace is False)
    return _unary(_float_type)(input)


def _softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Fresh:
    layout = _dense(input)
    _dimension(dim, len(layout.sizes))
    _need(input.dtype.is_floating_point and (dtype is None or dtype.is_floating_point))
    return Fresh(layout.sizes, dtype or input.dtype)


def _to(dtype: torch.dtype | None = None) -> Callable[..., Fresh | torch.Tensor]:
    def formula(input: Any) -> Fresh | torch.Tensor:
        return _convert(input, dtype)

    return formula


def _convert(input: Any, dtype: Any) -> Fresh | torch.Tensor:
    _need(isinstance(dtype, torch.dtype) and not (input.dtype.is_complex or dtype.is_complex))
    layout = _tensor(input)
    if input.dtype is dtype:
        return input
    _need(bool(layout.sizes) and is_dense(layout))
    return Fresh(layout.sizes, dtype)


# -- over rows ---------------------------------------------------------------------------------------------------------


def _linear(input: Any, weight: Any, bias: Any = None) -> Fresh:
    x, w = _tensor(input), _tensor(weight)
    _need(len(x.sizes) == 2 or (len(x.sizes) > 2 and is_dense(x)))
    _need(len(w.sizes) == 2 and same(x.sizes[-1], w.sizes[1]))
    _need(input.dtype.is_floating_point and input.dtype is weight.dtype and input.device == weight.device)
    if bias is not None:
        _need(all_same(_tensor(bias).sizes, w.sizes[:1]) and bias.dtype is input.dtype and bias.device == input.device)
    return Fresh([*x.sizes[:-1], w.sizes[0]], input.dtype)


def _addmm(input: Any, mat1: Any, mat2: Any) -> Fresh:
    a, b = _tensor(mat1), _tensor(mat2)
    _need(len(a.sizes) == len(b.sizes) == 2 and same(a.sizes[1], b.sizes[0]))
    _need(all_same(_tensor(input).sizes, b.sizes[1:]) and mat1.dtype.is_floating_point)
    _need(all(t.dtype is mat1.dtype and t.device == mat1.device for t in (input, mat2)))
    return Fresh([a.sizes[0], b.sizes[1]], mat1.dtype)


def _embedding(
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


def _layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Fresh:
    layout, rows = _dense(input), _sizes([normalized_shape])
    _need(input.dtype.is_floating_point and 0 < len(rows) <= len(layout.sizes))
    _need(all_same(layout.sizes[-len(rows) :], rows))
    for p in (weight, bias):
        _need(p is None or (p.dtype is input.dtype and p.device == input.device and all_same(_tensor(p).sizes, rows)))
    return Fresh(layout.sizes, input.dtype)


def _mean(input: Any, dim: Any = None, keepdim: bool = False) -> Fresh:
    layout = _dense(input)
    _need(input.dtype.is_floating_point and type(keepdim) is bool)
    d = _dimension(dim, len(layout.sizes))
    kept = [1] if keepdim else []
    sizes = [*layout.sizes[:d], *kept, *layout.sizes[d + 1 :]]
    _need(bool(sizes))
    return Fresh(sizes, input.dtype)


def _gather(input: Any, dim: Any, index: Any) -> Fresh:
    layout, places = _tensor(input), _tensor(index)
    d = _dimension(dim, len(layout.sizes))
    _need(len(places.sizes) == len(layout.sizes) and index.dtype is torch.int64 and index.device == input.device)
    _need(all(same(a, b) for e, (a, b) in enumerate(zip(layout.sizes, places.sizes, strict=True)) if e != d))
    return Fresh(places.sizes, input.dtype)


def _cat(tensors: Any, dim: Any = 0) -> Fresh:
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


def _view(input: Any, *shape: Any) -> Alias:
    layout, sizes = _tensor(input), _sizes(shape)
    opened = [d for d, size in enumerate(sizes) if same(size, -1)]
    if len(sizes) == len(layout.sizes) and len(opened) <= 1:
        kept = [
            size if d in opened else wanted for d, (size, wanted) in enumerate(zip(layout.sizes, sizes, strict=True))
        ]
        # The strides of a size of 1 come out anew.
        if all_same(kept, layout.sizes) and 1 not in kept:
            return _alias(input, layout)
    return _alias(input, fast_kernels.view(layout, sizes))


def _expand(input: Any, *sizes: Any) -> Alias:
    return _alias(input, fast_kernels.expand(_tensor(input), _sizes(sizes)))


def _transpose(input: Any, dim0: Any, dim1: Any) -> Alias:
    layout = _tensor(input)
    first, second = (_dimension(d, len(layout.sizes)) for d in (dim0, dim1))
    return _alias(input, fast_kernels.transpose(layout, first, second))


def _permute(input: Any, *dims: Any) -> Alias:
    _need(len(dims) > 0)
    return _permute_by(input, dims)


def _permute_by(input: Any, dims: Any) -> Alias:
    _need(isinstance(dims, (tuple, list)))
    order = _sizes(dims) if dims else []
    _need(all(isinstance(d, int) for d in order))
    return _alias(input, fast_kernels.permute(_tensor(input), order))  # type: ignore[arg-type]


def _unsqueeze(input: Any, dim: Any) -> Alias:
    layout = _tensor(input)
    return _alias(input, fast_kernels.unsqueeze(layout, _dimension(dim, len(layout.sizes) + 1)))


def _contiguous(input: Any) -> torch.Tensor:
    _need(is_dense(_tensor(input)))
    return input


def _item(input: Any, index: Any) -> Alias:
    """Slices, dimensions of 1, and places, one after the other as PyTorch takes them."""
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
            unsqueezed = fast_kernels.unsqueeze(layout, dim)
            assert unsqueezed is not None, "a dimension in range"
            layout, dim = unsqueezed, dim + 1
            continue
        size, stride = layout.sizes[dim], layout.strides[dim]
        if type(part) is int:
            # Sizes are at least 1: the first and the last place are there.
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
    """(start, length) of a slice that is the whole, is the beginning up to a symbolic length, or has constant ends in a constant size."""
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
    """That a slice ends within its dimension: the one guard that PyTorch's kernel needs, too."""
    env, within = stop.node.env, Le(number(stop), size)  # type: ignore[attr-defined]
    try:
        _need(bool(env.hint(within)) and env.decide(within))
    except ShapesError:
        raise _Open from None


# -- what is called how ------------------------------------------------------------------------------------------------


def _functions(names: str, *owners: Any) -> list[Any]:
    """The names as methods, and the functions of these names."""
    return [*names.split(), *(getattr(owner, name) for name in names.split() for owner in owners)]


FORMULAS: dict[Any, Callable[..., Fresh | Alias | torch.Tensor]] = {
    **dict.fromkeys(_functions("add sub mul", torch), _binary(_number_type)),
    **dict.fromkeys((operator.add, operator.sub, operator.mul), _binary(_number_type, reflects=True)),
    **dict.fromkeys(_functions("div true_divide", torch), _binary(_float_type)),
    operator.truediv: _binary(_float_type, reflects=True),
    **dict.fromkeys(_functions("eq ne lt le gt ge", torch), _binary(lambda dtype: torch.bool)),
    **dict.fromkeys(
        (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        _binary(lambda dtype: torch.bool, reflects=True),
    ),
    **dict.fromkeys((operator.and_, operator.or_), _binary(_bit_type, reflects=True)),
    **dict.fromkeys((torch.bitwise_and, torch.bitwise_or), _binary(_bit_type)),
    **dict.fromkeys([*_functions("pow", torch), operator.pow], _power),
    **dict.fromkeys(_functions("neg", torch, operator), _unary(_number_type)),
    **dict.fromkeys(_functions("exp log sqrt rsqrt tanh sigmoid sin cos erf", torch), _unary(_float_type)),
    F.gelu: _gelu,
    **dict.fromkeys([F.relu, F.silu], _activation),
    **dict.fromkeys([torch.relu, "relu"], _unary(_float_type)),
    F.softmax: _softmax,
    "to": _convert,
    "float": _to(torch.float32),
    "long": _to(torch.int64),
    "bool": _to(torch.bool),
    F.linear: _linear,
    torch.addmm: _addmm,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    **dict.fromkeys(_functions("mean", torch), _mean),
    torch.cat: _cat,
    **dict.fromkeys(_functions("gather", torch), _gather),
    **dict.fromkeys(("view", "reshape"), _view),
    "expand": _expand,
    **dict.fromkeys(_functions("transpose", torch), _transpose),
    "permute": _permute,
    torch.permute: _permute_by,
    **dict.fromkeys(_functions("unsqueeze", torch), _unsqueeze),
    "contiguous": _contiguous,
    operator.getitem: _item,
}

__all__ = ["FORMULAS", "Alias", "Fresh", "answer", "number"]
