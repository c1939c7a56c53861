"""Fake kernels for constant sizes that need no Python of PyTorch: views, pointwise operators, products, norms. Needs torch.

    answer(mode, aten.view.default, (x, [8, -1]), {}, [x])     # View(argument=0, ...): what C++ says for x without elements
    answer(mode, aten.mul.Tensor, (x, y), {}, [x, y])          # New(...), of the dtype that an earlier `mul` of such dtypes had

In PyTorch's fake mode a call takes 100 to 800 us the first time for given sizes: it looks for constants, decompositions and fake
kernels, and many of those are written in Python. Here three kinds of calls are answered in 10 to 30 us:

- Views and copies whose kernel for tensors without elements is C++, the same code that computes eager's sizes and strides.
- Pointwise operators on row-major tensors of which one has the sizes of the result, or on dense tensors of one layout: TensorIterator
  (aten/src/ATen/TensorIterator.cpp, `reorder_dimensions`, `fast_set_up`) gives the result that layout, and its dtype depends on no
  size. The dtype is remembered from a call that PyTorch answered, and only where the result had that layout, too.
- A few operators with a shape function of their own, and convolutions, whose layout C++ tells.

All other calls get None. Arguments are those that `static_calls` accepts: plain, with constant sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from treadle_shapes.layouts import Layout, dense_strides, is_dense
from treadle_shapes.torch import shape_functions
from treadle_shapes.torch.fake_call_cache import NOTHING, Argument, New, Several, View, is_differentiable, storage_of
from treadle_shapes.torch.operators import Kind, operator
from treadle_shapes.torch.shape_functions import Fresh, NotAnswered

aten = torch.ops.aten
# Copies and products that PyTorch has in C++, or in Python without a decomposition, for tensors without elements.
_AS_IN_CPP = (aten._unsafe_view.default, aten.clone.default, aten.mm.default, aten.bmm.default)
_PARAMETERS = (type(None), str, torch.dtype, torch.layout, torch.memory_format)
_FULL_FLOATS = (torch.float32, torch.float64)
_MOST_DTYPES = 1 << 14  # numbers beside integer tensors count by their values: a program may have any number of them

# What the dtype of a pointwise result depends on -> that dtype; None where PyTorch must be asked.
_dtypes: dict[Any, torch.dtype | None] = {}


def answer(
    mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Any:
    """The result of the overload in the mode as an entry of `fake_call_cache`, or None. tensors: those among the arguments, each once."""
    if is_differentiable() or not tensors or any(t.device != tensors[0].device for t in tensors):
        return None  # autograd would have to record the call
    if is_answered_by_cpp(func):
        return _from_cpp(mode, func, args, kwargs, tensors)
    if func in _FUNCTIONS:
        return _from_function(func, args, kwargs, tensors)
    if func in _CONVOLUTIONS:
        return _from_convolution(mode, func, args, kwargs)
    if not _is_pointwise(func):
        return None
    like = _like_result(args, kwargs, tensors)
    if like is None:
        return None
    dtype = _dtypes.get(_question(func, args, kwargs, tensors))
    if func._schema.is_mutable:  # an operator in place, which gives its first argument
        return Argument(0) if dtype is not None and tensors[0].shape == like.shape else None
    return None if dtype is None else New(tuple(like.shape), like.stride(), dtype, like.device)


def note(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor], result: Any
) -> None:
    """Remember what PyTorch answered to a call that was not answered here."""
    like = _like_result(args, kwargs, tensors) if tensors and _is_pointwise(func) else None
    if like is None:
        return
    if len(_dtypes) >= _MOST_DTYPES:
        _dtypes.clear()
    is_plain = type(result) is FakeTensor and result.layout is torch.strided and result.storage_offset() == 0
    is_like = is_plain and all(get(result) == get(like) for get in _LAYOUT)
    _dtypes[_question(func, args, kwargs, tensors)] = result.dtype if is_like else None


def forget_all() -> None:
    """Forget what PyTorch has answered in this process."""
    _dtypes.clear()


@functools.cache
def is_answered_by_cpp(func: Any) -> bool:
    """Whether a C++ kernel computes sizes and strides of the overload's result."""
    return func in _AS_IN_CPP or (func.is_view and func.namespace == "aten" and func not in _BY_ELEMENTS)


# Views of other dtypes, and of conjugated or sparse tensors, whose kernels ask for more than sizes.
_BY_ELEMENTS = tuple(
    overload
    for name in "view_as_real view_as_complex _conj _neg_view values indices _values _indices".split()
    if (packet := getattr(aten, name, None)) is not None
    for overload in (getattr(packet, o) for o in packet.overloads())
) + (aten.view.dtype,)


def _from_cpp(
    mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> Any:
    if any(t.dtype != tensors[0].dtype for t in tensors[1:]):
        return None  # kernels without elements are not as strict as eager's
    try:
        # Where sizes are symbolic, PyTorch's Python kernels are on, and their views of sizes of 1 have other strides than eager's.
        with in_kernel_invocation_manager(mode), torch._C._DisablePythonDispatcher():
            found = func(*args, **kwargs)
    except Exception:
        return None  # PyTorch's fake mode has the error of eager
    if isinstance(found, torch.Tensor):
        return _entry(found, tensors[0])
    if isinstance(found, (list, tuple)) and found:
        return Several(type(found), tuple([_entry(item, tensors[0]) for item in found]))
    return None


def _entry(found: torch.Tensor, first: torch.Tensor) -> Any:
    """The entry for a result of C++: a view of the first tensor, or memory of its own."""
    if storage_of(found) == storage_of(first):
        return View(0, tuple(found.shape), found.stride(), found.storage_offset())
    return _as_new(found, first.device)


# -- pointwise ---------------------------------------------------------------------------------------------------------

# The results of the first are row-major whatever the tensor is (aten/src/ATen/native/Pow.cpp, TensorAdvancedIndexing.cpp), that of the last
# comes from operators on a tensor with one more dimension.
_IN_OTHER_LAYOUTS = (aten.pow.Scalar, aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.mvlgamma.default)


@functools.cache
def _is_pointwise(func: Any) -> bool:
    """Whether the overload computes each element of one tensor, a new one or its first argument, from those at its place."""
    record = operator(func)
    if record is None or record.kind is not Kind.POINTWISE or record.is_random or record.fake_kernel is not None:
        return False
    if func in _IN_OTHER_LAYOUTS:
        return False
    if (record.writes or record.aliases) and not func._schema.is_mutable:
        return False
    returns = func._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)


def _like_result(
    args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    """The tensor among the arguments that has the sizes, strides and device of a pointwise result; None where that is not certain."""
    if any(isinstance(value, (list, tuple)) for value in (*args, *kwargs.values())):
        return None
    largest = max(tensors, key=lambda t: (t.dim(), t.numel()))
    sizes = largest.shape
    if not sizes or any(t.device != largest.device for t in tensors):
        return None
    if all(map(_is_row_major, tensors)):
        broadcasts = all(
            n in (1, full) for t in tensors for n, full in zip(reversed(t.shape), reversed(sizes), strict=False)
        )
        return largest if broadcasts else None
    is_one_layout = all(t.shape == sizes and t.stride() == largest.stride() for t in tensors)
    return largest if is_one_layout and _is_dense_in_some_order(largest) else None


_LAYOUT = (torch.Tensor.size, torch.Tensor.stride, lambda t: t.device)


def _is_row_major(t: torch.Tensor) -> bool:
    """Whether a tensor has elements, in row-major order and without gaps."""
    return is_dense(Layout([*t.shape], [*t.stride()]))


def _is_dense_in_some_order(t: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill a block of memory. No dimension has size 1: the strides of such dimensions mean nothing."""
    reach = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size < 2 or stride != reach:
            return False
        reach *= size
    return True


def _question(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    """What the dtype of the result may depend on, sizes aside. Numbers count by their type where all tensors are of floats."""
    by_type = all(t.dtype.is_floating_point for t in tensors)

    def part(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.dim() == 0  # those without dimensions do not decide among dtypes of a kind
        return type(value) if by_type and not isinstance(value, _PARAMETERS) else (type(value), value)

    named = tuple([(name, part(value)) for name, value in kwargs.items()])
    return func, torch.get_default_dtype(), tensors[0].device.type, tuple(map(part, args)), named


# -- shape functions ---------------------------------------------------------------------------------------------------


def _from_function(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    if kwargs:
        return None
    try:
        found = [_new(f.sizes, f.dtype, tensors[0].device) for f in _FUNCTIONS[func](*args)]
    except NotAnswered:
        return None
    return found[0] if len(func._schema.returns) == 1 else Several(tuple, tuple(found))


def _new(sizes: Sequence[Any], dtype: torch.dtype, device: torch.device) -> New:
    return New(tuple(sizes), tuple(dense_strides(sizes)), dtype, device)


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> list[Fresh]:
    """On the CPU, result, mean and deviation have the dtype of x (aten/src/ATen/native/layer_norm.cpp, layer_norm_cpu)."""
    if x.dtype not in _FULL_FLOATS or x.device.type != "cpu":
        raise NotAnswered
    found = shape_functions.layer_norm(x, shape, weight, bias, eps)
    rows = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return [found, Fresh(rows, x.dtype), Fresh(rows, x.dtype)]


def _batch_norm(x: Any, *parameters: Any) -> list[Fresh]:
    """Result, mean and deviation of a training step, and new running statistics where they are returned."""
    *tensors, training, _, _ = parameters
    if not training or any(t is None for t in tensors) or x.dim() < 2 or not _is_row_major(x) or x.device.type != "cpu":
        raise NotAnswered
    channels = x.shape[1:2]
    if x.dtype not in _FULL_FLOATS or any(t.dtype is not x.dtype or t.shape != channels for t in tensors):
        raise NotAnswered
    return [Fresh([*x.shape], x.dtype), *[Fresh([*channels], x.dtype)] * 4]


def _sum(x: Any, dims: Any, keepdim: bool = False) -> list[Fresh]:
    count = x.dim()
    if not (x.dtype.is_floating_point and count and dims and _is_row_major(x)):
        raise NotAnswered
    if not all(type(d) is int and -count <= d < count for d in dims) or len({d % count for d in dims}) < len(dims):
        raise NotAnswered
    gone = {d % count for d in dims}
    kept = [1 if d in gone else n for d, n in enumerate(x.shape) if keepdim or d not in gone]
    return [Fresh(kept, x.dtype)]


# -- convolutions ------------------------------------------------------------------------------------------------------

# Overload -> positions of input, weight, bias, sizes of the bias, and of the first of the six options that follow.
_CONVOLUTIONS = {aten.convolution.default: (0, 1, 2, None, 3), aten.convolution_backward.default: (1, 2, None, 3, 4)}
_OPTIONS = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


def _from_convolution(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """As PyTorch's fake kernel answers (torch/_subclasses/fake_impls.py, conv), for images of four dimensions on the CPU."""
    image, weight, bias, bias_sizes, first = _CONVOLUTIONS[func]
    x, w = args[image], args[weight]
    if kwargs or x.device.type != "cpu" or not x.dim() == w.dim() == 4 or x.dtype != w.dtype or x.numel() == 0:
        return None
    choice = dict(zip(_OPTIONS, args[first : first + len(_OPTIONS)], strict=True))
    choice["bias"] = None if bias is None else args[bias]
    if choice["bias"] is None:
        choice["bias_sizes"] = None if bias_sizes is None else args[bias_sizes]
    device = x.device  # of a kernel's arguments it is "meta"
    try:
        with mode:
            backend = torch._C._select_conv_backend(x, w, **choice)
            layout = torch._C._conv_determine_backend_memory_format(x, w, backend)
        with in_kernel_invocation_manager(mode):
            found = func(*args)
            results = [found] if isinstance(found, torch.Tensor) else found
            converted = [t if t is None else t.to(memory_format=layout) for t in results[:2]]
    except Exception:
        return None  # PyTorch's fake mode has the error of eager
    entries = tuple([NOTHING if t is None else _as_new(t, device) for t in (*converted, *results[2:])])
    return entries[0] if isinstance(found, torch.Tensor) else Several(tuple, entries)


def _as_new(t: torch.Tensor, device: torch.device) -> New:
    return New(tuple(t.shape), t.stride(), t.dtype, device)


_FUNCTIONS: dict[Any, Callable[..., list[Fresh]]] = {
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _sum,
    aten.native_batch_norm.default: lambda *args: _batch_norm(*args)[:3],
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.addmm.default: lambda *args: [shape_functions.addmm(*args)],
    aten.native_layer_norm.default: _layer_norm,
}
"""Overload -> the results' sizes and dtypes, all row-major, from its arguments. Raises NotAnswered."""


__all__ = ["answer", "forget_all", "is_answered_by_cpp", "note"]
