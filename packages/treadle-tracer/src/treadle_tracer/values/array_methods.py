"""Attributes, methods and operators of arrays of the graph."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.values.array_functions import dot
from treadle_tracer.values.array_items import get_item, set_item, store
from treadle_tracer.values.array_options import (
    dtype_option,
    index_option,
    is_absent,
    is_no_value,
    plain,
    shape_option,
    takes,
)
from treadle_tracer.values.array_sorting import argsort, searchsorted, sort_in_place
from treadle_tracer.values.array_ufuncs import (
    as_array,
    axes_of,
    call_ufunc,
    call_ufunc_method,
    converted,
)
from treadle_tracer.values.arrays import ArrayValue, fresh, in_graph, numpy_module
from treadle_tracer.values.backwards_view import BackwardsView, forwards
from treadle_tracer.values.base import NONE, Constant, Method
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.known_elements import known_number
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import Sequence, TupleValue
from treadle_tracer.values.tensor import TensorValue, shape_of
from treadle_tracer.values.tensor_numbers import item, to_list, to_number
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# ---- attributes


def attribute(tx: TraceContext, owner: ArrayValue, name: str) -> Value:
    """`owner.name`"""
    apply = _ATTRIBUTES.get(name)
    if apply is not None:
        return apply(tx, owner)
    raw = lookup(tx, owner.python_type(), name)
    if raw is MISSING:
        return tx.raise_exception(AttributeError, f"{owner.type_name()!r} object has no attribute {name!r}")
    if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        raise Unsupported("numpy", f".{name} of {owner.describe()}")
    return Method(owner, name, raw)


def _transposed(tx: TraceContext, owner: ArrayValue) -> Value:
    if owner.ndim < 2:
        return owner if owner.is_scalar else ArrayValue(in_graph(tx, torch.Tensor.view_as, owner.tensor, owner.tensor))
    return ArrayValue(in_graph(tx, torch.permute, owner.tensor, tuple(reversed(range(owner.ndim)))))


def _count(tx: TraceContext, owner: ArrayValue) -> Value:
    sizes = shape_of(tx, owner.tensor).items
    total: Value = Constant(1)
    for size in sizes:
        total = tx.binary_op("*", total, size)
    return total


def _bytes(tx: TraceContext, owner: ArrayValue) -> Value:
    return tx.binary_op("*", _count(tx, owner), Constant(owner.dtype.itemsize))


def _real(tx: TraceContext, owner: ArrayValue) -> Value:
    if owner.dtype.kind == "c":
        raise Unsupported("numpy", "the real part of a complex array")
    return owner


_ATTRIBUTES: dict[str, Callable[..., Value]] = by_name(
    ("shape", lambda tx, owner: TupleValue(shape_of(tx, owner.tensor).items)),
    ("ndim", lambda tx, owner: Constant(owner.ndim)),
    ("size", _count),
    ("nbytes", _bytes),
    ("itemsize", lambda tx, owner: Constant(owner.dtype.itemsize)),
    ("dtype", lambda tx, owner: tx.wrap_known(owner.dtype)),
    ("T", _transposed),
    ("real", _real),
    ("device", lambda tx, owner: Constant("cpu")),
    ("__class__", lambda tx, owner: tx.wrap_known(owner.python_type())),
    ("__array_priority__", lambda tx, owner: Constant(-1000000.0 if owner.is_scalar else 0.0)),
)


# ---- methods


def method(tx: TraceContext, owner: ArrayValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`owner.name(*args, **kwargs)`"""
    kwargs = {key: value for key, value in kwargs.items() if not is_no_value(value)}
    if name in _IN_PYTHON:
        body = getattr(sys.modules["numpy._core._methods"], _IN_PYTHON[name])
        return tx.inline(tx.wrap_known(body), [owner, *args], kwargs)
    if name in _OPERATORS:
        return _operator_method(tx, owner, name, args)
    apply = _METHODS.get(name)
    if apply is None or not takes(apply, [owner, *args], kwargs):
        raise Unsupported("numpy", f".{name}() of {owner.describe()} with these arguments")
    return apply(tx, owner, *args, **kwargs)


_IN_PYTHON = {
    "sum": "_sum", "prod": "_prod", "max": "_amax", "min": "_amin", "any": "_any", "all": "_all", "mean": "_mean",
    "var": "_var", "std": "_std", "clip": "_clip",
}  # fmt: skip
"""Methods that NumPy implements in Python, with their functions in `numpy._core._methods`."""


def _operator_method(tx: TraceContext, owner: ArrayValue, name: str, args: list[Value]) -> Value:
    text, reflected, in_place = _OPERATORS[name]
    if text in ("neg", "pos", "abs", "invert"):
        return call_ufunc(tx, _ufunc(_UNARY[text]), [owner], {})
    left, right = (args[0], owner) if reflected else (owner, args[0])
    return binary(tx, text + ("=" if in_place else ""), left, right)


def _ufunc(name: str) -> Any:
    return getattr(numpy_module(), name)


_UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}
_BINARY = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "%": "remainder", "**": "power",
    "@": "matmul", "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor", "<": "less", "<=": "less_equal",
    "==": "equal", "!=": "not_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
_NAMES = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor",
}  # fmt: skip
_COMPARISONS = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
_OPERATORS: dict[str, tuple[str, bool, bool]] = {
    **{f"__{name}__": (text, False, False) for text, name in (*_NAMES.items(), *_COMPARISONS.items())},
    **{f"__r{name}__": (text, True, False) for text, name in _NAMES.items()},
    **{f"__i{name}__": (text, False, True) for text, name in _NAMES.items()},
    **{f"__{name}__": (name, False, False) for name in _UNARY},
}


def binary(tx: TraceContext, text: str, left: Value, right: Value) -> Value:
    """An operator one of whose operands is an array; in place where the text ends in `=` and is no comparison."""
    in_place = text.endswith("=") and text not in _BINARY
    name = _BINARY.get(text.removesuffix("=") if in_place else text)
    if in_place and isinstance(left, BackwardsView):
        raise Unsupported("numpy", f"a write to {left.describe()}")
    left, right = forwards(tx, left), forwards(tx, right)
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        return _with_tensor(tx, text, left, right)
    for one in (left, right):
        if isinstance(one, ObjectValue) or name is None:
            raise Unsupported("numpy", f"{left.describe()} {text} {right.describe()}")
    if text in ("==", "!=") and any(isinstance(one, Constant) and not _is_number(one.obj) for one in (left, right)):
        raise Unsupported("numpy", f"{left.describe()} {text} {right.describe()}")
    kwargs: dict[str, Value] = {}
    if in_place and isinstance(left, ArrayValue) and not left.is_scalar:
        kwargs["out"] = left
    if name == "power" and isinstance(right, Constant) and is_one_of(type(right.obj), (int, float)):
        return _power(tx, left, right, kwargs)
    return call_ufunc(tx, _ufunc(name), [left, right], kwargs)


def _with_tensor(tx: TraceContext, text: str, left: Value, right: Value) -> Value:
    """A tensor of torch and a scalar of NumPy, which is a number to torch. The scalar leaves the operator to the tensor on its right."""
    is_covered = text.removesuffix("=") in ("+", "-", "*", "/")
    operands = [_number_of_scalar(tx, one) if isinstance(one, ArrayValue) else one for one in (left, right)]
    if not is_covered or None in operands:
        raise Unsupported("numpy", f"{left.describe()} {text} {right.describe()}")
    one, other = operands
    assert one is not None and other is not None
    return tx.binary_op(text if isinstance(left, TensorValue) else text.removesuffix("="), one, other)


def _number_of_scalar(tx: TraceContext, scalar: ArrayValue) -> Value | None:
    if not scalar.is_scalar or scalar.dtype.name not in ("float64", "float32", "int64"):
        return None
    known = known_number(tx, scalar.tensor.known_node)
    return item(tx, scalar.tensor) if known is None else Constant(scalar.dtype.type(known))


def _is_number(obj: Any) -> bool:
    return is_one_of(type(obj), (bool, int, float, complex)) or is_numpy_scalar(obj)


def _power(tx: TraceContext, left: Value, right: Constant, kwargs: dict[str, Value]) -> Value:
    """`array ** number`, of which NumPy computes some powers in other ways."""
    exponent = right.obj
    if exponent == 2 and isinstance(left, ArrayValue) and not (left.dtype.kind in "iu" and type(exponent) is float):
        return call_ufunc(tx, _ufunc("square"), [left], kwargs)
    return call_ufunc(tx, _ufunc("power"), [left, right], kwargs)


def unary(tx: TraceContext, text: str, owner: ArrayValue | BackwardsView) -> Value:
    """`-owner`, `+owner`, `~owner`"""
    return call_ufunc(tx, _ufunc({"-": "negative", "+": "positive", "~": "invert"}[text]), [owner], {})


def _reshape(tx: TraceContext, owner: ArrayValue, *shape: Value, order: Value | None = None, copy: Value | None = None):
    if plain(order, "C") != "C" or plain(copy) is not None or not shape:
        raise Unsupported("numpy", "reshape in another order")
    sizes = shape_option(tx, shape[0] if len(shape) == 1 else TupleValue(list(shape)))
    if owner.is_scalar or any(isinstance(size, Constant) and size.obj < -1 for size in sizes.items):  # type: ignore[attr-defined]
        raise Unsupported("numpy", "reshape of a scalar")
    return ArrayValue(in_graph(tx, torch.reshape, owner.tensor, sizes))


def _transpose(tx: TraceContext, owner: ArrayValue, *axes: Value):
    if not axes or (len(axes) == 1 and is_absent(axes[0])):
        return _transposed(tx, owner)
    given = axes[0].unpack(tx) if len(axes) == 1 and isinstance(axes[0], Sequence) else list(axes)
    order = tuple(index_option(one) for one in given)
    return ArrayValue(in_graph(tx, torch.permute, owner.tensor, order))


def _swapaxes(tx: TraceContext, owner: ArrayValue, first: Value, second: Value):
    return ArrayValue(in_graph(tx, torch.transpose, owner.tensor, plain(first), plain(second)))


def _flatten(tx: TraceContext, owner: ArrayValue, order: Value | None = None):
    if plain(order, "C") != "C":
        raise Unsupported("numpy", "flatten in another order")
    return ArrayValue(in_graph(tx, torch.reshape, fresh(tx, owner), (-1,)))


def _ravel(tx: TraceContext, owner: ArrayValue, order: Value | None = None):
    if plain(order, "C") not in ("C", "K") or owner.ndim == 0:
        raise Unsupported("numpy", "ravel in another order")
    if owner.tensor.fake.is_contiguous():
        return ArrayValue(in_graph(tx, torch.reshape, owner.tensor, (-1,)))
    if plain(order, "C") == "K":
        raise Unsupported("numpy", "ravel in the order of memory")
    return _flatten(tx, owner)


def _squeeze(tx: TraceContext, owner: ArrayValue, axis: Value | None = None):
    sizes = owner.tensor.fake.shape
    if is_absent(axis):
        axes = [position for position, size in enumerate(sizes) if size == 1]
    else:
        axes = axes_of(tx, axis, owner.ndim)
        if any(sizes[one] != 1 for one in axes):
            raise Unsupported("numpy", "squeeze of a dimension that is not 1")
    if owner.is_scalar:
        return owner
    return ArrayValue(in_graph(tx, torch.squeeze, owner.tensor, tuple(axes)))


def _astype(
    tx: TraceContext,
    owner: ArrayValue,
    dtype: Value,
    order: Value | None = None,
    casting: Value | None = None,
    subok: Value | None = None,
    copy: Value | None = None,
):
    wanted = dtype_option(dtype, None)
    if not numpy_module().can_cast(owner.dtype, wanted, plain(casting, "unsafe")) or plain(order, "K") != "K":
        raise Unsupported("numpy", f"astype({wanted}) with these options")
    if wanted == owner.dtype:
        return owner if not plain(copy, True) else ArrayValue(in_graph(tx, torch.clone, owner.tensor), owner.is_scalar)
    return ArrayValue(converted(tx, owner.tensor, wanted), owner.is_scalar)


def _copy(tx: TraceContext, owner: ArrayValue, order: Value | None = None):
    kept = plain(order, "C")
    if kept not in ("C", "K"):
        raise Unsupported("numpy", "copy in another order")
    tensor = fresh(tx, owner) if kept == "C" else in_graph(tx, torch.clone, owner.tensor)
    return ArrayValue(tensor, owner.is_scalar)


def _extreme_position(function: Callable[..., Any]) -> Callable[..., Value]:
    def apply(
        tx: TraceContext,
        owner: ArrayValue,
        axis: Value | None = None,
        out: Value | None = None,
        *,
        keepdims: Value | None = None,
    ):
        if not is_absent(out) or owner.dtype.kind == "c":
            raise Unsupported("numpy", "argmax with these options")
        if owner.ndim == 0 or any(size == 0 for size in owner.tensor.fake.shape):
            raise Unsupported("numpy", "argmax of no elements")
        tensor = owner.tensor
        if owner.dtype.kind == "b":
            tensor = in_graph(tx, torch.Tensor.to, tensor, torch.uint8)
        keeps = plain(keepdims, False)
        if type(keeps) is not bool:
            raise Unsupported("numpy", "argmax with these options")
        if is_absent(axis):
            if keeps:
                raise Unsupported("numpy", "argmax with these options")
            return ArrayValue(in_graph(tx, function, tensor), is_scalar=True)
        (dim,) = axes_of(tx, axis, owner.ndim)
        result = in_graph(tx, function, tensor, dim, keeps)
        return ArrayValue(result, result.fake.dim() == 0)

    return apply


def _accumulated(name: str) -> Callable[..., Value]:
    def apply(
        tx: TraceContext,
        owner: ArrayValue,
        axis: Value | None = None,
        dtype: Value | None = None,
        out: Value | None = None,
    ):
        if is_absent(axis):
            owner, axis = ArrayValue(in_graph(tx, torch.reshape, owner.tensor, (-1,))), Constant(0)
        return call_ufunc_method(tx, _ufunc(name), "accumulate", [owner, axis, dtype or NONE, out or NONE], {})

    return apply


def _item(tx: TraceContext, owner: ArrayValue, *where: Value):
    if where or owner.tensor.fake.numel() != 1:
        raise Unsupported("numpy", "item with a position")
    return item(tx, owner.tensor)


def _round(tx: TraceContext, owner: ArrayValue, decimals: Value | None = None, out: Value | None = None):
    places = plain(decimals, 0)
    if not is_absent(out) or owner.dtype.kind not in "fiu" or places < 0:
        raise Unsupported("numpy", "round with these arguments")
    if owner.dtype.kind != "f":
        return ArrayValue(in_graph(tx, torch.clone, owner.tensor), owner.ndim == 0)
    if places == 0:
        return call_ufunc(tx, _ufunc("rint"), [owner], {})
    factor = Constant(10.0**places)
    scaled = call_ufunc(tx, _ufunc("rint"), [call_ufunc(tx, _ufunc("multiply"), [owner, factor], {})], {})
    return call_ufunc(tx, _ufunc("divide"), [scaled, factor], {})


def _fill(tx: TraceContext, owner: ArrayValue, value: Value):
    store(tx, owner.tensor, value, owner.dtype)
    return NONE


def _repeat(tx: TraceContext, owner: ArrayValue, repeats: Value, axis: Value | None = None):
    times = plain(repeats)
    if type(times) is not int or times < 0 or owner.is_scalar:
        raise Unsupported("numpy", "repeat with these arguments")
    if is_absent(axis):
        owner, dims = ArrayValue(in_graph(tx, torch.reshape, owner.tensor, (-1,))), [0]
    else:
        dims = axes_of(tx, axis, owner.ndim)
    return ArrayValue(in_graph(tx, torch.repeat_interleave, owner.tensor, times, dims[0]))


def _take(tx: TraceContext, owner: ArrayValue, indices: Value, axis: Value | None = None, **options: Value):
    if options and any(not is_absent(value) for name, value in options.items() if name == "out"):
        raise Unsupported("numpy", "take with these options")
    if options.keys() - {"out", "mode"} or plain(options.get("mode"), "raise") != "raise" or owner.is_scalar:
        raise Unsupported("numpy", "take with these options")
    if is_absent(axis):
        flat = ArrayValue(in_graph(tx, torch.reshape, owner.tensor, (-1,)))
        return get_item(tx, flat, _as_index_array(tx, indices))
    (dim,) = axes_of(tx, axis, owner.ndim)
    position = _as_index_array(tx, indices)
    found = get_item(tx, owner, TupleValue([Constant(slice(None))] * dim + [position]))
    if isinstance(position, Constant) and not found.is_scalar:  # an item is a view, what is taken is a copy
        return ArrayValue(in_graph(tx, torch.clone, found.tensor))
    return found


def _as_index_array(tx: TraceContext, indices: Value) -> Value:
    if isinstance(indices, Constant) and type(indices.obj) is int:
        return indices
    found = as_array(tx, indices)
    if found.ndim == 0 or found.dtype.kind not in "iu":
        raise Unsupported("numpy", "take at these positions")
    return found


def _conjugated(tx: TraceContext, owner: ArrayValue):
    return call_ufunc(tx, _ufunc("conjugate"), [owner], {}) if owner.dtype.kind == "c" else owner


def _number(cls: type) -> Callable[..., Value]:
    def apply(tx: TraceContext, owner: ArrayValue) -> Value:
        if owner.ndim:
            raise Unsupported("numpy", f"{cls.__name__}() of an array")
        return to_number(tx, owner.tensor, cls)

    return apply


_METHODS: dict[str, Callable[..., Value]] = by_name(
    ("reshape", _reshape),
    ("transpose", _transpose),
    ("swapaxes", _swapaxes),
    ("flatten", _flatten),
    ("ravel", _ravel),
    ("squeeze", _squeeze),
    ("astype", _astype),
    ("copy", _copy),
    ("argmax", _extreme_position(torch.argmax)),
    ("argmin", _extreme_position(torch.argmin)),
    ("cumsum", _accumulated("add")),
    ("cumprod", _accumulated("multiply")),
    ("item", _item),
    ("tolist", lambda tx, owner: to_list(tx, owner.tensor)),
    ("round", _round),
    ("fill", _fill),
    ("repeat", _repeat),
    ("sort", sort_in_place),
    ("argsort", argsort),
    ("searchsorted", searchsorted),
    ("take", _take),
    ("dot", dot),
    ("conj conjugate", _conjugated),
    ("__getitem__", lambda tx, owner, key: get_item(tx, owner, key)),
    ("__setitem__", lambda tx, owner, key, value: _stored(set_item(tx, owner, key, value))),
    ("__len__", lambda tx, owner: owner.length_value(tx)),
    ("__iter__", lambda tx, owner: owner.iterate(tx)),
    ("__copy__", lambda tx, owner: _copy(tx, owner)),
    ("__float__", _number(float)),
    ("__int__", _number(int)),
)


def _stored(_: None) -> Value:
    return NONE
