"""NumPy's universal functions on arrays of the graph: which loop NumPy would run, and the torch calls that compute what it computes.

NumPy itself says which dtypes a call computes with (`ufunc.resolve_dtypes`), so promotion is NumPy's. Arrays are converted to these dtypes,
one torch function computes, and the result is converted to the loop's dtype. What NumPy warns of: `array_warnings`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import module_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.values import numpy_numbers
from treadle_tracer.values.array_options import dtype_option, index_option, is_absent, is_no_value
from treadle_tracer.values.array_warnings import note_flag, note_not_finite
from treadle_tracer.values.arrays import ArrayValue, array_of, constant_array, in_graph, numpy_module, torch_dtype
from treadle_tracer.values.arrays_of_numbers import array_of_number, array_of_numbers, has_changing_numbers
from treadle_tracer.values.backwards_view import BackwardsView, forwards
from treadle_tracer.values.base import NONE, Constant, LazyValue, is_none
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.sequences import ListValue, Sequence
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value
from treadle_tracer.weakly import class_may_change

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def is_ufunc(obj: Any) -> bool:
    """Whether the object is a universal function."""
    return module_of(type(obj)) == "numpy" and not class_may_change(type(obj)) and type(obj).__name__ == "ufunc"


class Operand(NamedTuple):
    """An operand: a tensor or a number, and its dtype, or Python's type of a number that adapts to the others."""

    value: Value
    kind: Any
    ndim: int


def operand(tx: TraceContext, value: Value) -> Operand:
    """An argument of a universal function."""
    value = forwards(tx, value.force(tx) if isinstance(value, LazyValue) else value)
    if isinstance(value, NumpyNumber):
        if value.obj.dtype.name in ("int64", "float64"):
            return Operand(value.number, value.obj.dtype, 0)
        value = value.fixed(tx)
    if isinstance(value, ArrayValue):
        return Operand(value.tensor, value.dtype, value.ndim)
    if isinstance(value, SymbolicValue) and is_one_of(value.python_type(), (int, float)):
        return Operand(value, value.python_type(), 0)
    if isinstance(value, Constant):
        if is_numpy_scalar(value.obj):
            return Operand(Constant(value.obj.item()), value.obj.dtype, 0)
        if type(value.obj) is bool:
            return Operand(value, numpy_module().dtype(bool), 0)
        if is_one_of(type(value.obj), (int, float, complex)):
            return Operand(value, type(value.obj), 0)
    if isinstance(value, Sequence):
        return operand(tx, as_array(tx, value))
    raise Unsupported("numpy", f"{value.describe()} as an operand")


def as_array(tx: TraceContext, value: Value) -> ArrayValue:
    """`np.asanyarray(value)`, of which nothing but the elements matters."""
    value = forwards(tx, value.force(tx) if isinstance(value, LazyValue) else value)
    if isinstance(value, ArrayValue):
        return ArrayValue(value.tensor) if value.is_scalar else value
    if isinstance(value, TensorValue):
        return array_of(value)
    if isinstance(value, Sequence):
        items = [item.force(tx) if isinstance(item, LazyValue) else item for item in value.items]
        if any(isinstance(item, (ArrayValue, BackwardsView, TensorValue)) for item in items):
            return _stacked(tx, [as_array(tx, item) for item in items])
        if any(has_changing_numbers(tx, item) for item in items):
            are_rows = any(isinstance(item, Sequence) for item in items)
            return _stacked(tx, [as_array(tx, item) for item in items]) if are_rows else array_of_numbers(tx, items)
        value = Constant([_plain(tx, item) for item in value.items])
    elif has_changing_numbers(tx, value) or isinstance(value, SymbolicValue):
        return array_of_number(tx, value)
    if isinstance(value, NumpyNumber):
        value = value.fixed(tx)
    if not value.is_constant():
        raise Unsupported("numpy", f"an array of {value.describe()}")
    given = value.constant()
    try:
        real = numpy_module().asarray(given)
    except (ValueError, TypeError, OverflowError) as error:  # the program's affair: it makes the call
        raise Unsupported("numpy", f"NumPy refuses an array: {error}") from None
    return constant_array(tx, real)


def _plain(tx: TraceContext, item: Value) -> Any:
    item = item.force(tx) if isinstance(item, LazyValue) else item
    if isinstance(item, Sequence):
        return [_plain(tx, part) for part in item.items]
    if isinstance(item, NumpyNumber):
        item = item.fixed(tx)
    if isinstance(item, SymbolicValue):
        return tx.specialise(item)
    if not isinstance(item, Constant):
        raise Unsupported("numpy", f"an array of {item.describe()}")
    return item.obj


def _stacked(tx: TraceContext, parts: list[ArrayValue]) -> ArrayValue:
    shapes = {tuple(part.tensor.fake.shape) for part in parts}
    if len(shapes) != 1:
        raise Unsupported("numpy", "an array of arrays of different shapes")
    dtype = numpy_module().result_type(*[part.dtype for part in parts])
    tensors: list[Value] = [converted(tx, part.tensor, dtype) for part in parts]
    return ArrayValue(in_graph(tx, torch.stack, ListValue(tensors)))


# ---- conversion and warnings


def converted(tx: TraceContext, tensor: TensorValue, dtype: Any) -> TensorValue:
    """The tensor in one of NumPy's dtypes; itself where it has that dtype."""
    source, target = tensor.fake.dtype, torch_dtype(dtype)
    if source is target:
        return tensor
    if target is torch.float16:
        raise Unsupported("numpy", "a conversion to float16, which may overflow")
    if source.is_complex and not target.is_complex:
        raise Unsupported("numpy", f"{source} as {target}, which discards the imaginary part")
    found = in_graph(tx, torch.Tensor.to, tensor, target)
    if source.is_floating_point and not target.is_floating_point and not target.is_complex and target is not torch.bool:
        limits = torch.iinfo(target)
        low, high = (in_graph(tx, f, tensor, float(n)) for f, n in ((torch.gt, limits.min - 1), (torch.lt, limits.max)))
        note_flag(tx, in_graph(tx, torch.logical_not, in_graph(tx, torch.logical_and, low, high)))
    elif (source.is_floating_point or source.is_complex) and source.itemsize > target.itemsize:
        if target is not torch.bool:
            note_not_finite(tx, found, [tensor])
    return found


# ---- calls


def call_ufunc(tx: TraceContext, ufunc: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`ufunc(*args, **kwargs)`"""
    compute = _COMPUTE.get(ufunc.__name__)
    if compute is None or ufunc.nout != 1 or len(args) < ufunc.nin:
        raise Unsupported("numpy", f"numpy.{ufunc.__name__}")
    given = [operand(tx, arg) for arg in args[: ufunc.nin]]
    outs = args[ufunc.nin :] or [kwargs.pop("out", NONE)]
    keeps_array = isinstance(outs[0], Constant) and outs[0].obj is Ellipsis  # NumPy 2.3: the result is no scalar
    out = _output(tx, [NONE] if keeps_array else outs)
    kwargs.pop("subok", None)
    if not _is_true(kwargs.pop("where", None)) or kwargs.keys() - {"casting", "dtype"}:
        raise Unsupported("numpy", f"numpy.{ufunc.__name__} with where= or other options")
    casting = kwargs["casting"].constant() if "casting" in kwargs else "same_kind"
    wanted = dtype_option(kwargs.get("dtype"))
    if not any(isinstance(each.value, TensorValue) for each in given):
        return _of_numbers(tx, ufunc, args, out, wanted)
    loop = _loop(ufunc, [each.kind for each in given], out, wanted, casting)
    result = _computed(tx, ufunc, compute, given, loop)
    if out is not None:
        return store_result(tx, out, result)
    is_scalar = all(each.ndim == 0 for each in given) if ufunc.signature is None else result.fake.dim() == 0
    return ArrayValue(result, is_scalar and not keeps_array)


def _of_numbers(tx: TraceContext, ufunc: Any, args: list[Value], out: ArrayValue | None, wanted: Any) -> Value:
    """A universal function of numbers that are no arrays: made anew for every call where they vary, else a constant."""
    if out is not None or wanted is not None:
        raise Unsupported("numpy", f"numpy.{ufunc.__name__} of numbers")
    found = numpy_numbers.universal(tx, ufunc.__name__, args) or numpy_numbers.made_anew(tx, ufunc, args)
    return tx.fold(ufunc, args, {}) if found is None else found


def _output(tx: TraceContext, outs: list[Value]) -> ArrayValue | None:
    (out,) = outs
    if isinstance(out, Sequence) and len(out.items) == 1:
        out = out.items[0]
    out = out.force(tx) if isinstance(out, LazyValue) else out
    if is_none(out):
        return None
    if not isinstance(out, ArrayValue) or out.is_scalar:
        raise Unsupported("numpy", f"out={out.describe()}")
    return out


def _is_true(value: Value | None) -> bool:
    return value is None or (isinstance(value, Constant) and value.obj is True)


def _loop(ufunc: Any, kinds: list[Any], out: ArrayValue | None, wanted: Any, casting: str) -> tuple[Any, ...]:
    """The dtypes that NumPy computes with: of the operands and of the result. Raises Unsupported where NumPy raises."""
    options: dict[str, Any] = {} if wanted is None else {"signature": (*(None for _ in kinds), wanted)}
    given = (*kinds, None if out is None else out.dtype)
    try:
        return ufunc.resolve_dtypes(given, casting=casting, **options)
    except (TypeError, ValueError) as error:
        raise Unsupported("numpy", f"numpy.{ufunc.__name__}: {error}") from None


_FLOATS = ("float32", "float64")
_COMPUTED = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8", *_FLOATS})
_COMPLEX = ("complex64", "complex128")


def _computed(
    tx: TraceContext, ufunc: Any, compute: _Compute, given: list[Operand], loop: tuple[Any, ...]
) -> TensorValue:
    *ins, result_dtype = loop
    known = _COMPUTED if ufunc.__name__ not in _ALSO_COMPLEX else _COMPUTED.union(_COMPLEX)
    for dtype in loop:
        if dtype.name not in known:
            raise Unsupported("numpy", f"numpy.{ufunc.__name__} of {dtype}")
    values = [in_dtype(tx, each, dtype) for each, dtype in zip(given, ins, strict=True)]
    result = compute(tx, values, ins[0])
    if result.fake.dtype is not torch_dtype(result_dtype):
        result = in_graph(tx, torch.Tensor.to, result, torch_dtype(result_dtype))
    if ufunc.__name__ not in _NEVER_WARNS and result_dtype.kind in "fc":
        note_not_finite(tx, result, values if ufunc.signature is None else ())
    if result_dtype.kind in "iu" and all(each.ndim == 0 for each in given) and ufunc.__name__ in _MAY_OVERFLOW:
        _note_overflow(tx, compute, values, result_dtype)
    return result


def in_dtype(tx: TraceContext, given: Operand, dtype: Any) -> TensorValue:
    """An operand in the dtype of the loop; a number becomes a tensor without dimensions."""
    if isinstance(given.value, TensorValue):
        return converted(tx, given.value, dtype)
    if isinstance(given.value, SymbolicValue):
        if dtype.name not in ("int64", "float64"):
            raise Unsupported("numpy", f"a dynamic number as {dtype}")
        return in_graph(tx, torch.full, (), given.value, dtype=torch_dtype(dtype), device="cpu")
    number = given.value.constant()
    try:
        with numpy_module().errstate(all="raise"):
            exact = dtype.type(number).item()
    except (OverflowError, ArithmeticError, TypeError) as error:
        raise Unsupported("numpy", f"{number!r} as {dtype}: {error}") from None
    return in_graph(tx, torch.full, (), exact, dtype=torch_dtype(dtype), device="cpu")


def store_result(tx: TraceContext, out: ArrayValue, result: TensorValue) -> ArrayValue:
    """Write a result to the array given as `out=`."""
    if tuple(out.tensor.fake.shape) != tuple(result.fake.shape):
        raise Unsupported("numpy", "out= of another shape")
    in_graph(tx, torch.Tensor.copy_, out.tensor, converted(tx, result, out.dtype))
    return out


def _note_overflow(tx: TraceContext, compute: _Compute, values: list[TensorValue], dtype: Any) -> None:
    """Scalars of integers warn where the result wraps around."""
    numbers = [in_graph(tx, torch.Tensor.to, value, torch.float64) for value in values]
    exact = compute(tx, numbers, numpy_module().dtype("float64"))
    wraps = in_graph(tx, torch.ge, in_graph(tx, torch.abs, exact), float(numpy_module().iinfo(dtype).max))
    if dtype.kind == "u":
        wraps = in_graph(tx, torch.logical_or, wraps, in_graph(tx, torch.lt, exact, 0))
    note_flag(tx, wraps)


# ---- what computes each

_Compute = Callable[["TraceContext", "list[Any]", Any], TensorValue]


def _calls(function: Callable[..., Any], **named: Any) -> _Compute:
    return lambda tx, values, dtype: in_graph(tx, function, *values, **named)


def _or_logical(function: Callable[..., Any], logical: Callable[..., Any]) -> _Compute:
    """NumPy's arithmetic of truth values is logic."""
    return lambda tx, values, dtype: in_graph(tx, logical if dtype.kind == "b" else function, *values)


def _or_itself(function: Callable[..., Any]) -> _Compute:
    """Integers are as they are."""
    return lambda tx, values, dtype: in_graph(tx, torch.clone if dtype.kind in "biu" else function, *values)


def _of_floats(function: Callable[..., Any], **named: Any) -> _Compute:
    def compute(tx: TraceContext, values: list[Any], dtype: Any) -> TensorValue:
        if dtype.kind != "f":
            raise Unsupported("numpy", f"{function.__name__} of {dtype}")
        return in_graph(tx, function, *values, **named)

    return compute


def _divided(function: Callable[..., Any], **named: Any) -> _Compute:
    """Whole numbers are divided by whole numbers that are neither 0 nor -1, where NumPy warns."""

    def compute(tx: TraceContext, values: list[Any], dtype: Any) -> TensorValue:
        if dtype.kind in "iu":
            divisor = values[1]
            zero = in_graph(tx, torch.eq, divisor, 0)
            note_flag(tx, in_graph(tx, torch.logical_or, zero, in_graph(tx, torch.eq, divisor, -1)))
            one = in_graph(tx, torch.ones_like, divisor)
            values = [values[0], in_graph(tx, torch.where, zero, one, divisor)]
        return in_graph(tx, function, *values, **named)

    return compute


def _power(tx: TraceContext, values: list[Any], dtype: Any) -> TensorValue:
    if dtype.kind in "iu":  # NumPy refuses negative exponents
        note_flag(tx, in_graph(tx, torch.lt, values[1], 0))
    elif dtype.kind != "f":
        raise Unsupported("numpy", f"a power of {dtype}")
    return in_graph(tx, torch.pow, *values)


def _sign(tx: TraceContext, values: list[Any], dtype: Any) -> TensorValue:
    sign = in_graph(tx, torch.sign, *values)
    return sign if dtype.kind != "f" else in_graph(tx, torch.where, in_graph(tx, torch.isnan, *values), *values, sign)


def _clipped(tx: TraceContext, values: list[Any], dtype: Any) -> TensorValue:
    return in_graph(tx, torch.minimum, in_graph(tx, torch.maximum, values[0], values[1]), values[2])


def _matrix_product(tx: TraceContext, values: list[Any], dtype: Any) -> TensorValue:
    if dtype.kind not in "iuf":
        raise Unsupported("numpy", f"a matrix product of {dtype}")
    if any(value.fake.dim() == 0 for value in values):
        raise Unsupported("numpy", "a matrix product with a number")
    return in_graph(tx, torch.matmul, *values)


_COMPUTE: dict[str, _Compute] = by_name(
    ("add", _or_logical(torch.add, torch.logical_or)),
    ("multiply", _or_logical(torch.mul, torch.logical_and)),
    ("subtract", _calls(torch.sub)),
    ("divide true_divide", _calls(torch.div)),
    ("floor_divide", _divided(torch.div, rounding_mode="floor")),
    ("remainder", _divided(torch.remainder)),
    ("power", _power),
    ("float_power", _of_floats(torch.pow)),
    ("negative", _calls(torch.neg)),
    ("positive", _calls(torch.clone)),
    ("absolute", lambda tx, values, dtype: in_graph(tx, torch.clone if dtype.kind == "b" else torch.abs, *values)),
    ("conjugate", lambda tx, values, dtype: in_graph(tx, torch.clone if dtype.kind != "c" else torch.conj_physical, *values)),
    ("sign", _sign),
    ("square", _calls(torch.square)),
    ("matmul", _matrix_product),
    ("clip", _clipped),
    *[(name, _calls(getattr(torch, name))) for name in "maximum minimum".split()],
    *[(name, _of_floats(getattr(torch, name))) for name in "fmax fmin copysign hypot logaddexp logaddexp2 nextafter".split()],
    ("arctan2", _of_floats(torch.atan2)),
    *[(name, _of_floats(getattr(torch, name))) for name in "sqrt exp exp2 expm1 log log2 log10 log1p".split()],
    *[(name, _of_floats(getattr(torch, name))) for name in "sin cos tan sinh cosh tanh arcsin arccos arctan".split()],
    *[(name, _of_floats(getattr(torch, name))) for name in "arcsinh arccosh arctanh reciprocal signbit".split()],
    ("rint", _of_floats(torch.round)),
    ("fabs", _of_floats(torch.abs)),
    *[(name, _or_itself(getattr(torch, name))) for name in "floor ceil trunc".split()],
    ("degrees rad2deg", _of_floats(torch.rad2deg)),
    ("radians deg2rad", _of_floats(torch.deg2rad)),
    *[
        (name, _calls(function))
        for name, function in {
            "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le,
            "greater": torch.gt, "greater_equal": torch.ge, "isfinite": torch.isfinite, "isnan": torch.isnan,
            "isinf": torch.isinf,
        }.items()
    ],
    *[(name, _calls(getattr(torch, name))) for name in "logical_and logical_or logical_xor logical_not".split()],
    ("bitwise_and", _or_logical(torch.bitwise_and, torch.logical_and)),
    ("bitwise_or", _or_logical(torch.bitwise_or, torch.logical_or)),
    ("bitwise_xor", _or_logical(torch.bitwise_xor, torch.logical_xor)),
    ("invert bitwise_not", _or_logical(torch.bitwise_not, torch.logical_not)),
)  # fmt: skip
"""Name of a universal function -> the torch calls for operands in the dtype of the loop."""

_ALSO_COMPLEX = frozenset(
    "add subtract multiply divide square equal not_equal conjugate negative positive absolute isfinite isinf isnan logical_and "
    "logical_or logical_xor logical_not".split()
)
_NEVER_WARNS = frozenset(
    "maximum minimum fmax fmin clip absolute fabs negative positive conjugate copysign sign signbit rint floor ceil trunc tanh arctan "
    "arctan2 arcsinh isfinite isinf isnan logical_and logical_or logical_xor logical_not".split()
)
_MAY_OVERFLOW = frozenset("add subtract multiply negative absolute square".split())


# ---- reductions


def _reduce_arguments(array, axis=0, dtype=None, out=None, keepdims=False, initial=None, where=None): ...  # type: ignore[no-untyped-def]


def _accumulate_arguments(array, axis=0, dtype=None, out=None): ...  # type: ignore[no-untyped-def]


def _bound(function: Any, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Any]:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise Unsupported("numpy", str(error)) from None
    bound.apply_defaults()
    parameters = bound.signature.parameters
    return {
        name: parameters[name].default if isinstance(value, Value) and is_no_value(value) else value
        for name, value in bound.arguments.items()
    }


def call_ufunc_method(tx: TraceContext, ufunc: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`ufunc.reduce(...)` and its like"""
    kwargs = {key: value for key, value in kwargs.items() if not is_no_value(value)}
    if name == "__call__":
        return call_ufunc(tx, ufunc, args, kwargs)
    if name == "reduce":
        return _reduce(tx, ufunc, _bound(_reduce_arguments, args, kwargs))
    if name == "accumulate":
        return _accumulate(tx, ufunc, _bound(_accumulate_arguments, args, kwargs))
    if name == "outer" and len(args) == 2 and ufunc.nin == 2:
        return _outer(tx, ufunc, args, kwargs)
    raise Unsupported("numpy", f"numpy.{ufunc.__name__}.{name}")


def axes_of(tx: TraceContext, axis: Value | int | None, ndim: int) -> list[int]:
    """The dimensions that an argument `axis` names, in order."""
    given: Any = _plain_axis(tx, axis) if isinstance(axis, Value) else axis
    if given is None:
        return list(range(ndim))
    axes: list[int] = [given] if not isinstance(given, tuple) else list(given)
    if any(not -ndim <= one < ndim for one in axes) or len({one % ndim for one in axes}) != len(axes):
        raise Unsupported("numpy", f"axis {axis} of an array of {ndim} dimensions")
    return sorted(one % ndim for one in axes)


def _plain_axis(tx: TraceContext, axis: Value) -> Any:
    if isinstance(axis, Sequence):
        return tuple(index_option(Constant(_plain(tx, item))) for item in axis.items)
    return None if is_absent(axis) else index_option(axis)


def _dtype_of_sum(dtype: Any) -> Any:
    """Small integers and truth values are added and multiplied as int64."""
    if dtype.kind == "u":
        raise Unsupported("numpy", f"a sum of {dtype}, which is a uint64")
    return numpy_module().dtype("int64") if dtype.kind in "bi" else dtype


def _reduce(tx: TraceContext, ufunc: Any, given: dict[str, Any]) -> Value:
    name = ufunc.__name__
    if name not in _REDUCTIONS:
        raise Unsupported("numpy", f"numpy.{name}.reduce")
    if given["initial"] is not None or not _is_true(given["where"]):
        raise Unsupported("numpy", f"numpy.{name}.reduce with initial= or where=")
    array = as_array(tx, given["array"])
    keepdims = given["keepdims"] is not False and bool(given["keepdims"].constant())
    axes = axes_of(tx, given["axis"], array.ndim)
    wanted = dtype_option(given["dtype"])
    keeps_array = isinstance(given["out"], Constant) and given["out"].obj is Ellipsis
    out = None if given["out"] is None or keeps_array else _output(tx, [given["out"]])
    if array.ndim == 0 and (keepdims or given["axis"] == 0):
        raise Unsupported("numpy", f"numpy.{name}.reduce of a number")
    dtype = _reduced_dtype(name, array.dtype, wanted)
    tensor = converted(tx, array.tensor, dtype)
    result = _REDUCTIONS[name](tx, tensor, axes, keepdims)
    if dtype.kind in "fc" and name in ("add", "multiply"):
        note_not_finite(tx, result, ())
    if out is not None:
        return store_result(tx, out, result)
    return ArrayValue(result, result.fake.dim() == 0 and not keeps_array)


def _reduced_dtype(name: str, dtype: Any, wanted: Any) -> Any:
    if name in ("logical_and", "logical_or") and dtype.kind in "biufc":
        return dtype
    found = wanted if wanted is not None else _dtype_of_sum(dtype) if name in ("add", "multiply") else dtype
    if found.name not in _COMPUTED and not (name == "add" and found.name in _COMPLEX):
        raise Unsupported("numpy", f"numpy.{name}.reduce of {found}")
    return found


def _is_empty(tensor: TensorValue, axes: list[int]) -> bool:
    return any(tensor.fake.shape[axis] == 0 for axis in axes)


def _sum(tx: TraceContext, tensor: TensorValue, axes: list[int], keepdims: bool) -> TensorValue:
    if not axes:
        return in_graph(tx, torch.clone, tensor)
    return in_graph(tx, torch.sum, tensor, tuple(axes), keepdims, dtype=tensor.fake.dtype)


def _product(tx: TraceContext, tensor: TensorValue, axes: list[int], keepdims: bool) -> TensorValue:
    found = tensor if axes else in_graph(tx, torch.clone, tensor)
    for axis in reversed(axes):
        found = in_graph(tx, torch.prod, found, axis, keepdims, dtype=tensor.fake.dtype)
    return found


def _extreme(function: Callable[..., Any]) -> Callable[..., TensorValue]:
    def compute(tx: TraceContext, tensor: TensorValue, axes: list[int], keepdims: bool) -> TensorValue:
        if _is_empty(tensor, axes):
            raise Unsupported("numpy", "the extreme of no elements")
        return in_graph(tx, function, tensor, tuple(axes), keepdims) if axes else in_graph(tx, torch.clone, tensor)

    return compute


def _quantified(function: Callable[..., Any]) -> Callable[..., TensorValue]:
    def compute(tx: TraceContext, tensor: TensorValue, axes: list[int], keepdims: bool) -> TensorValue:
        truths = tensor if tensor.fake.dtype is torch.bool else in_graph(tx, torch.ne, tensor, 0)
        return in_graph(tx, function, truths, tuple(axes), keepdims) if axes else in_graph(tx, torch.clone, truths)

    return compute


_REDUCTIONS: dict[str, Callable[..., TensorValue]] = by_name(
    ("add", _sum),
    ("multiply", _product),
    ("maximum", _extreme(torch.amax)),
    ("minimum", _extreme(torch.amin)),
    ("logical_and", _quantified(torch.all)),
    ("logical_or", _quantified(torch.any)),
)


def _accumulate(tx: TraceContext, ufunc: Any, given: dict[str, Any]) -> Value:
    function = {"add": torch.cumsum, "multiply": torch.cumprod}.get(ufunc.__name__)
    array = as_array(tx, given["array"])
    if function is None or array.ndim == 0:
        raise Unsupported("numpy", f"numpy.{ufunc.__name__}.accumulate")
    (axis,) = axes_of(tx, given["axis"], array.ndim)
    dtype = _reduced_dtype(ufunc.__name__, array.dtype, dtype_option(given["dtype"]))
    tensor = converted(tx, array.tensor, dtype)
    result = in_graph(tx, function, tensor, axis, dtype=tensor.fake.dtype)
    if dtype.kind in "fc":
        note_not_finite(tx, result, ())
    out = None if given["out"] is None else _output(tx, [given["out"]])
    return ArrayValue(result) if out is None else store_result(tx, out, result)


def _outer(tx: TraceContext, ufunc: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    left, right = (as_array(tx, arg) for arg in args)
    shape = tuple(left.tensor.fake.shape) + (1,) * right.ndim
    if any(not isinstance(size, int) for size in shape):
        raise Unsupported("numpy", "an outer product of dynamic size")
    return call_ufunc(tx, ufunc, [ArrayValue(in_graph(tx, torch.reshape, left.tensor, shape)), right], kwargs)
