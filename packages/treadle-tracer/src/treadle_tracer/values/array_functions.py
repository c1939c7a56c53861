"""NumPy's functions, and the methods and attributes of arrays, on arrays of the graph.

What NumPy implements in Python (`np.stack`, `np.mean`, `np.linspace`, ...) is traced like any other Python. The tables here hold what it
implements in C. A call that stands in no table breaks the graph, and so does one for which NumPy would raise.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.class_facts import defining_package
from treadle_tracer.errors import Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.values.array_interpolation import interp, linspace
from treadle_tracer.values.array_items import get_item, store
from treadle_tracer.values.array_options import (
    copy_option,
    dtype_option,
    is_absent,
    is_c_order,
    plain,
    shape_option,
    size_option,
    takes,
)
from treadle_tracer.values.array_sorting import median, searchsorted_function, unique
from treadle_tracer.values.array_ufuncs import (
    as_array,
    axes_of,
    call_ufunc,
    converted,
    in_dtype,
    is_ufunc,
    operand,
)
from treadle_tracer.values.array_warnings import note_not_finite
from treadle_tracer.values.arrays import ArrayValue, first_warning_of, fresh, in_graph, numpy_module, torch_dtype
from treadle_tracer.values.backwards_view import BackwardsView
from treadle_tracer.values.base import NONE, Constant, LazyValue
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.deferred_warnings import warn
from treadle_tracer.values.numpy_reductions import reduced
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import ListValue, Sequence, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue, shape_of
from treadle_tracer.values.ufuncs_of_tensors import call_ufunc_of_tensors, takes_tensors
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_PURE = frozenset(
    "prod sum mean max amax min amin cumsum cumprod dot linspace around round clip isclose allclose array_equal sort argsort unique "
    "searchsorted argmax argmin concatenate stack ndim shape size log2 result_type can_cast promote_types array asarray asanyarray "
    "arange zeros ones full eye identity logspace geomspace meshgrid hanning hamming blackman kaiser bartlett tri tril triu outer "
    "where".split()
)
"""Functions of NumPy, besides universal ones, whose results follow from their arguments."""


def is_pure_numpy_function(obj: Any) -> bool:
    """Whether a callable of NumPy may be called while tracing."""
    return is_ufunc(obj) or (
        getattr(obj, "__module__", None) == "numpy" and _is_of_numpy(obj) and getattr(obj, "__name__", "") in _PURE
    )


def call_function(tx: TraceContext, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`function(*args, **kwargs)` of NumPy"""
    every = [*args, *kwargs.values()]
    name = getattr(function, "__name__", "")
    if _is_of_numpy(function) and (number := reduced(tx, name, args, kwargs)) is not None:
        return number
    if is_pure_numpy_function(function) and all(arg.is_constant() for arg in every):
        return _known(tx, function, args, kwargs)
    if is_ufunc(function) and takes_tensors(function, args, kwargs):
        return call_ufunc_of_tensors(tx, function, args, dict(kwargs))
    if is_ufunc(function):
        return call_ufunc(tx, function, args, dict(kwargs))
    apply = _FUNCTIONS.get(name)
    if apply is not None and _is_of_numpy(function):
        return apply(tx, *args, **kwargs) if takes(apply, args, kwargs) else _refuse(function)
    body = getattr(function, "_implementation", None)
    if isinstance(body, types.FunctionType) and not any(_is_overriding(tx, arg) for arg in every):
        return tx.inline(tx.wrap_known(body), args, kwargs)
    raise Unsupported("builtin-call", f"{getattr(function, '__module__', None)}.{name}")


def _known(tx: TraceContext, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of a function of constants. What it warns of is the program's affair: it makes the call."""

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = tx.fold(function, args, kwargs)
    if seen:
        raise Unsupported("numpy", f"{getattr(function, '__name__', function)} warns: {seen[0].message}")
    return result


def _is_of_numpy(function: Any) -> bool:
    if type(function) is types.FunctionType:
        return defining_package(function) == "numpy"
    return str(getattr(function, "__module__", "")).partition(".")[0] == "numpy"


def _refuse(function: Any) -> Value:
    raise Unsupported("numpy", f"numpy.{getattr(function, '__name__', function)} with these arguments")


def _is_overriding(tx: TraceContext, value: Value) -> bool:
    """Whether NumPy would ask the argument to carry out the function (NEP 18)."""
    values = value.items if isinstance(value, Sequence) else [value]
    return any(
        isinstance(one, ObjectValue) and lookup(tx, one.python_type(), "__array_function__") is not MISSING
        for one in values
    )


# ---- functions that make arrays


def _array(tx: TraceContext, given: Value, dtype: Value | None = None, *, copy: Value | None = None, **options: Value):
    if set(options) - {"order", "subok", "ndmin"}:
        raise Unsupported("numpy", "numpy.array with these options")
    order, must_copy = plain(options.get("order"), "K"), copy_option(copy)
    if order not in ("K", "C"):
        raise Unsupported("numpy", "numpy.array in another order")
    if must_copy is False:
        raise Unsupported("numpy", "numpy.array(copy=False)")
    given = given.force(tx) if isinstance(given, LazyValue) else given
    if must_copy and isinstance(given, TensorValue) and (text := _warning_of_copies()) is not None:
        warn(tx, Constant(text), DeprecationWarning)
    if order == "C":
        return ArrayValue(fresh(tx, _asarray(tx, given, dtype)))
    found = _asarray(tx, given, dtype)
    is_same = isinstance(given, TensorValue) or (isinstance(given, ArrayValue) and found.tensor is given.tensor)
    array = ArrayValue(in_graph(tx, torch.clone, found.tensor)) if is_same and must_copy else found
    missing = plain(options.get("ndmin"), 0) - array.ndim
    return array if missing <= 0 else get_item(tx, array, TupleValue([NONE] * missing + [Constant(Ellipsis)]))


@functools.cache
def _warning_of_copies() -> str | None:
    """What NumPy says of a tensor that it is to copy: PyTorch's `__array__` takes no `copy` (NumPy 2). None if it says nothing."""
    return first_warning_of(lambda: numpy_module().array(torch.zeros(1)))


def _asarray(tx: TraceContext, given: Value, dtype: Value | None = None, order: Value | None = None, **options: Value):
    if set(options) - {"copy", "device"} or plain(options.get("copy")) is not None or plain(order) is not None:
        raise Unsupported("numpy", "numpy.asarray with these options")
    array = as_array(tx, given)
    wanted = dtype_option(dtype, array.dtype)
    if wanted != array.dtype:
        return ArrayValue(converted(tx, array.tensor, wanted))
    if isinstance(given, ArrayValue) and given.is_scalar:  # scalars never change, and arrays may be written to
        return ArrayValue(in_graph(tx, torch.clone, array.tensor))
    return array


def _asarray_or_itself(tx: TraceContext, given: Value, dtype: Value | None = None, **options: Value):
    found = _asarray(tx, given, dtype, **options)
    given = given.force(tx) if isinstance(given, LazyValue) else given
    return given if isinstance(given, BackwardsView) and found.dtype == given.dtype else found


def _ascontiguousarray(tx: TraceContext, given: Value, dtype: Value | None = None):
    found = _asarray(tx, given, dtype)
    if found.ndim == 0:
        raise Unsupported("numpy", "numpy.ascontiguousarray of a number")
    return found if found.tensor.fake.is_contiguous() else ArrayValue(fresh(tx, found))


def _filled(value: int) -> Callable[..., Value]:
    def make(tx: TraceContext, shape: Value, dtype: Value | None = None, order: Value | None = None, **options: Value):
        if set(options) - {"device"} or not is_c_order(order):
            raise Unsupported("numpy", "an array in another order")
        wanted = torch_dtype(dtype_option(dtype, numpy_module().dtype(float)))
        sizes = shape_option(tx, shape)
        return ArrayValue(in_graph(tx, torch.full, sizes, value, dtype=wanted, device="cpu"))

    return make


def _empty_like(
    tx: TraceContext, prototype: Value, dtype: Value | None = None, order: Value | None = None, **options: Value
):
    array = as_array(tx, prototype)
    if options.keys() - {"subok", "shape", "device"} or plain(options.get("shape")) is not None:
        raise Unsupported("numpy", "numpy.empty_like with these options")
    if not array.tensor.fake.is_contiguous() and plain(order, "K") != "C":
        raise Unsupported("numpy", "numpy.empty_like of an array in another order")
    return ArrayValue(
        in_graph(
            tx,
            torch.full,
            TupleValue(shape_of(tx, array.tensor).items),
            0,
            dtype=torch_dtype(dtype_option(dtype, array.dtype)),
            device="cpu",
        )
    )


def _arange(tx: TraceContext, *given: Value, dtype: Value | None = None):
    numbers = [size_option(tx, one) for one in given]
    wanted = torch_dtype(dtype_option(dtype, numpy_module().dtype(int)))
    if not 1 <= len(numbers) <= 3 or wanted not in (torch.int64, torch.int32, torch.float32, torch.float64):
        raise Unsupported("numpy", "numpy.arange with these arguments")
    return ArrayValue(in_graph(tx, torch.arange, *numbers, dtype=wanted, device="cpu"))


def eye(
    tx: TraceContext, rows: Value, columns: Value | None = None, k: Value | None = None, dtype: Value | None = None
):
    if plain(k, 0) != 0:
        raise Unsupported("numpy", "numpy.eye with an offset")
    sizes = [size_option(tx, rows), size_option(tx, rows if is_absent(columns) else columns)]
    wanted = torch_dtype(dtype_option(dtype, numpy_module().dtype(float)))
    return ArrayValue(in_graph(tx, torch.eye, *sizes, dtype=wanted, device="cpu"))


# ---- functions of arrays


def _concatenate(
    tx: TraceContext, arrays: Value, axis: Value | None = None, out: Value | None = None, **options: Value
):
    parts = [as_array(tx, part) for part in arrays.unpack(tx)]
    casting = plain(options.get("casting"), "same_kind")
    if not is_absent(out) or not parts or options.keys() - {"dtype", "casting"}:
        raise Unsupported("numpy", "numpy.concatenate with these options")
    wanted = dtype_option(options.get("dtype"), numpy_module().result_type(*[part.dtype for part in parts]))
    if not all(numpy_module().can_cast(part.dtype, wanted, casting) for part in parts):
        raise Unsupported("numpy", "numpy.concatenate of arrays that cannot be converted")
    tensors: list[Value] = [converted(tx, part.tensor, wanted) for part in parts]
    if len({part.ndim for part in parts}) != 1 or parts[0].ndim == 0:
        raise Unsupported("numpy", "numpy.concatenate of arrays of different dimensions")
    where = 0
    if axis is not None and is_absent(axis):
        tensors = [in_graph(tx, torch.reshape, tensor, (-1,)) for tensor in tensors]
    elif axis is not None:
        (where,) = axes_of(tx, axis, parts[0].ndim)
    return ArrayValue(in_graph(tx, torch.cat, ListValue(tensors), where))


def _meshgrid(tx: TraceContext, *given: Value, indexing: Value | None = None):
    order = plain(indexing, "xy")
    axes = [as_array(tx, one) for one in given]
    if order not in ("xy", "ij") or any(axis.ndim != 1 for axis in axes):
        raise Unsupported("numpy", "numpy.meshgrid of these arrays")
    places = list(range(len(axes)))
    if order == "xy" and len(axes) > 1:
        places[:2] = [1, 0]
    columns = [
        in_graph(tx, torch.reshape, axis.tensor, tuple(-1 if place == other else 1 for other in range(len(axes))))
        for place, axis in zip(places, axes, strict=True)
    ]
    grids = tx.run_in_graph("call_function", torch.broadcast_tensors, list(columns), {}).unpack(tx)
    order_of_c = Constant(torch.contiguous_format)
    return TupleValue([ArrayValue(in_graph(tx, torch.clone, grid, memory_format=order_of_c)) for grid in grids])


def _where(tx: TraceContext, condition: Value, x: Value, y: Value):
    test = as_array(tx, condition)
    sides = [operand(tx, side) for side in (x, y)]
    kinds = [_weak(side.kind) for side in sides]
    wanted = numpy_module().result_type(*kinds)
    torch_dtype(wanted)
    chosen = [in_dtype(tx, side, wanted) for side in sides]
    truths = test.tensor if test.dtype.kind == "b" else in_graph(tx, torch.ne, test.tensor, 0)
    return ArrayValue(in_graph(tx, torch.where, truths, *chosen))


def _weak(kind: Any) -> Any:
    """A dtype, or a number that NumPy takes for one without a dtype."""
    return {int: 0, float: 0.0, complex: 0j}[kind] if isinstance(kind, type) else kind


def dot(tx: TraceContext, a: Value, b: Value) -> Value:
    """`np.dot(a, b)` of vectors and matrices."""
    left, right = as_array(tx, a), as_array(tx, b)
    if not 1 <= left.ndim <= 2 or not 1 <= right.ndim <= 2 or left.dtype.kind not in "iuf" or left.dtype != right.dtype:
        raise Unsupported("numpy", "numpy.dot of these arrays")
    result = in_graph(tx, torch.matmul, left.tensor, right.tensor)
    if left.dtype.kind == "f":
        note_not_finite(tx, result, ())
    return ArrayValue(result, result.fake.dim() == 0)


def _einsum(tx: TraceContext, equation: Value, *operands: Value):
    arrays = [as_array(tx, one) for one in operands]
    text = plain(equation)
    if (
        type(text) is not str
        or len(arrays) < 2
        or any(a.dtype.kind != "f" or a.dtype != arrays[0].dtype for a in arrays)
    ):
        raise Unsupported("numpy", "numpy.einsum of these operands")
    result = in_graph(tx, torch.einsum, text, *[array.tensor for array in arrays])
    return ArrayValue(result, result.fake.dim() == 0)


def _roll(tx: TraceContext, given: Value, shift: Value, axis: Value | None = None):
    array, places = as_array(tx, given), plain(shift)
    if type(places) is not int or array.ndim == 0:
        raise Unsupported("numpy", "numpy.roll with these arguments")
    if is_absent(axis):
        return ArrayValue(in_graph(tx, torch.roll, array.tensor, places))
    (dim,) = axes_of(tx, axis, array.ndim)
    return ArrayValue(in_graph(tx, torch.roll, array.tensor, places, dim))


def _copyto(tx: TraceContext, target: Value, given: Value, casting: Value | None = None, where: Value | None = None):
    if not isinstance(target, ArrayValue):
        raise Unsupported("numpy", "numpy.copyto of something that is no array")
    side = operand(tx, given)
    if not numpy_module().can_cast(numpy_module().dtype(side.kind), target.dtype, plain(casting, "same_kind")):
        raise Unsupported("numpy", "numpy.copyto of another kind")
    mask = None if where is None or (isinstance(where, Constant) and where.obj is True) else as_array(tx, where)
    if mask is not None and mask.dtype.kind != "b":
        raise Unsupported("numpy", "numpy.copyto where something is no truth value")
    store(tx, target.tensor, given, target.dtype, None if mask is None else mask.tensor)
    return NONE


def _result_type(tx: TraceContext, *given: Value):
    return tx.wrap_known(numpy_module().result_type(*[_dtype_like(tx, one) for one in given]))


def _dtype_like(tx: TraceContext, value: Value) -> Any:
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, (ArrayValue, BackwardsView)):
        return value.dtype
    if isinstance(value, SymbolicValue):
        return _weak(value.python_type())
    return plain(value)


_FUNCTIONS: dict[str, Callable[..., Value]] = by_name(
    ("array", _array),
    ("asarray asanyarray", _asarray_or_itself),
    ("ascontiguousarray", _ascontiguousarray),
    ("zeros empty", _filled(0)),
    ("ones", _filled(1)),
    ("empty_like", _empty_like),
    ("arange", _arange),
    ("concatenate", _concatenate),
    ("meshgrid", _meshgrid),
    ("where", _where),
    ("dot", dot),
    ("c_einsum", _einsum),
    ("copyto", _copyto),
    ("roll", _roll),
    ("unique", unique),
    ("searchsorted", searchsorted_function),
    ("median", median),
    ("interp", interp),
    ("linspace", linspace),
    ("result_type", _result_type),
    ("normalize_axis_index", lambda tx, axis, ndim, *more: Constant(_index_in(plain(axis), plain(ndim)))),
)
"""Functions that NumPy implements in C, and some that would look at what the trace does not know."""


def _index_in(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise Unsupported("numpy", f"axis {axis} of an array of {ndim} dimensions")
    return axis % ndim
