"""Arrays of NumPy whose elements only the graph knows: each is a tensor of the graph with the same memory.

    a = x.numpy()          # an ArrayValue of the tensor x: writes through either are seen by both
    b = np.sin(a)          # an ArrayValue of a new tensor; outside the graph it is `tensor.numpy()`
    c = b[0, 0]            # a scalar of NumPy: an ArrayValue of a tensor without dimensions, outside the graph `tensor.numpy()[()]`

An outside array is an input of the graph by `torch.from_numpy`, guarded like a tensor. What NumPy's functions do with arrays is in
`array_ufuncs` and `array_functions`.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.class_facts import module_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource
from treadle_tracer.values.base import Constant
from treadle_tracer.values.iteration import ItemIterator
from treadle_tracer.values.tensor import TensorValue, shape_of
from treadle_tracer.values.value import NotConstant, Value
from treadle_tracer.weakly import class_may_change

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_DTYPES = "bool int8 int16 int32 int64 uint8 float16 float32 float64 complex64 complex128".split()


@functools.cache
def numpy_module() -> Any:
    """NumPy, which programs without arrays do not need. Raises Unsupported where it is missing or older than 2.0."""
    try:
        import numpy
    except ImportError as error:
        raise Unsupported("numpy", f"NumPy cannot be imported: {error}") from None
    if _is_old(numpy):
        raise Unsupported("numpy", f"NumPy {numpy.__version__} promotes dtypes by other rules than NumPy 2 (NEP 50)")
    return numpy


def _is_old(numpy: Any) -> bool:
    return int(numpy.__version__.partition(".")[0]) < 2


@functools.cache
def torch_dtype(dtype: Any) -> torch.dtype:
    """PyTorch's dtype for one of NumPy's. Raises Unsupported where there is none."""
    if dtype.name not in _DTYPES or not dtype.isnative or dtype.metadata is not None:
        raise Unsupported("numpy", f"dtype {dtype}")
    return getattr(torch, dtype.name)


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> Any:
    """NumPy's dtype for one of PyTorch's. Raises Unsupported where there is none."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise Unsupported("numpy", f"{dtype}")
    return numpy_module().dtype(name)


def is_numpy_function(obj: Any) -> bool:
    """Whether a callable is a function of NumPy that is not written in Python, or is dispatched."""
    if module_of(type(obj)) == "numpy" and not class_may_change(type(obj)):
        return True
    return type(obj) is types.BuiltinFunctionType and str(obj.__module__).partition(".")[0] == "numpy"


class ArrayValue(Value):
    """An ndarray, or where `is_scalar` a scalar of NumPy, with the memory of `tensor`. `obj` is the outside array.

    is_of_tensor: the program has made it from a tensor, which is its `base`.
    """

    __slots__ = ("is_of_tensor", "is_scalar", "obj", "tensor")

    def __init__(
        self,
        tensor: TensorValue,
        is_scalar: bool = False,
        obj: Any = None,
        source: Source | None = None,
        is_of_tensor: bool = False,
    ):
        self.source = source
        self.tensor = tensor
        self.is_scalar = is_scalar
        self.obj = obj
        self.is_of_tensor = is_of_tensor

    @property
    def dtype(self) -> Any:
        """NumPy's dtype."""
        return numpy_dtype(self.tensor.fake.dtype)

    @property
    def ndim(self) -> int:
        return self.tensor.fake.dim()

    def python_type(self) -> type:
        return self.dtype.type if self.is_scalar else numpy_module().ndarray

    def type_name(self) -> str:
        """The name of the type in messages of exceptions."""
        return f"numpy.{self.python_type().__name__}"

    def describe(self) -> str:
        kind = "NumPy scalar" if self.is_scalar else "array"
        what = f"{kind} {self.tensor.fake.dtype} {tuple(self.tensor.fake.shape)}"
        return f"{self.source.text} ({what})" if self.source is not None else what

    def constant(self) -> Any:
        raise NotConstant(self)

    def hash_key(self, tx: TraceContext) -> Any:
        if self.is_scalar:
            raise Unsupported("hash", self.describe())
        return tx.raise_exception(TypeError, "unhashable type: 'numpy.ndarray'")

    # ---- attributes and calls

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        return tx.array_attribute(self, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.array_method(self, name, args, kwargs)

    # ---- protocols

    def truth(self, tx: TraceContext) -> bool:
        return self.tensor.truth(tx)

    def length(self, tx: TraceContext) -> int:
        if self.is_scalar:
            tx.raise_exception(TypeError, f"object of type {self.type_name()!r} has no len()")
        if self.ndim == 0:
            tx.raise_exception(TypeError, "len() of unsized object")
        return self.tensor.length(tx)

    def length_value(self, tx: TraceContext) -> Value:
        return shape_of(tx, self.tensor).items[0] if self.ndim else Constant(self.length(tx))

    def as_index(self, tx: TraceContext) -> int:
        if self.ndim:
            tx.raise_exception(TypeError, "only integer scalar arrays can be converted to a scalar index")
        return self.tensor.as_index(tx)

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        return tx.array_method(self, "__getitem__", [key], {})

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        tx.array_method(self, "__setitem__", [key, value], {})

    def iterate(self, tx: TraceContext) -> Value:
        if self.ndim == 0:
            text = f"{self.type_name()!r} object is not iterable" if self.is_scalar else "iteration over a 0-d array"
            tx.raise_exception(TypeError, text)
        return ItemIterator(self, self.length(tx))

    def contains(self, tx: TraceContext, item: Value) -> bool:
        raise Unsupported("branch-on-tensor", f"in {self.describe()}")

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
        else:
            cg.call_const(self._maker(cg), self.tensor)

    def _maker(self, cg: Any) -> Callable[[torch.Tensor], Any]:
        """What makes the array of the tensor. NumPy's own arrays have no tensor as their base: they own memory, or are views of arrays.

        An array that owns memory is copied, because no array can take a tensor's memory over. One that shares its memory with something
        else that leaves the graph cannot be copied.
        """
        if self.is_scalar:
            return _scalar_of_tensor
        if self.is_of_tensor:
            return _array_of_tensor
        return _copy_of_tensor if cg.has_own_memory(self.tensor.known_node) else _view_of_tensor


def _array_of_tensor(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy()


def _view_of_tensor(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy().view()


def _copy_of_tensor(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy().copy(order="K")


def _scalar_of_tensor(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy()[()]


# ---- from outside


def why_not_input(array: Any) -> str | None:
    """Why an outside array cannot be an input of a graph, or None."""
    if _is_old(sys.modules["numpy"]):
        return "an array of NumPy 1"
    if not _has_tensors(array.dtype):
        return f"of dtype {array.dtype}"
    flags = array.flags
    if not flags.writeable:
        return "read-only"
    size = array.itemsize
    if not flags.aligned or any(stride < 0 or stride % size for stride in array.strides):
        return "laid out as no tensor can be"
    return None


@functools.lru_cache(maxsize=64)
def _has_tensors(dtype: Any) -> bool:
    """Whether PyTorch has tensors of this dtype. NumPy puts the name of a dtype together anew, which takes longer than all the rest."""
    return dtype.name in _DTYPES and dtype.isnative


def tensor_of_array(array: Any) -> torch.Tensor:
    """A tensor with the memory of an outside array. Raises TypeError where PyTorch has no such tensor."""
    if type(array).__name__ != "ndarray" or why_not_input(array) is not None:
        raise TypeError("no tensor has this memory")
    return torch.from_numpy(array)


def wrap_array(tx: TraceContext, obj: Any, source: Source) -> Value:
    """The Value of an outside array."""
    why = why_not_input(obj)
    if why is not None:
        raise Unsupported("array-kind", f"{source.text} is {why}")
    tx.guards.add(source, "type_is", type(obj))
    tensor = tx.wrap_tensor(tensor_of_array(obj), ApplySource(source, tensor_of_array))
    assert isinstance(tensor, TensorValue)
    return ArrayValue(tensor, obj=obj, source=source)


# ---- from inside


def why_no_array(tensor: TensorValue) -> str | None:
    """Why `tensor.numpy()` is not an array that shares the tensor's memory, or None."""
    fake = tensor.fake
    if fake.requires_grad:
        return "a tensor that requires a gradient"
    if fake.device.type != "cpu" or fake.layout is not torch.strided or fake.is_conj() or fake.is_neg():
        return "no plain tensor of the CPU"
    if tensor.python_type() is not torch.Tensor and not issubclass(tensor.python_type(), torch.nn.Parameter):
        return f"a {tensor.python_type().__name__}"
    return None


def array_of(tensor: TensorValue) -> ArrayValue:
    """`tensor.numpy()`"""
    why = why_no_array(tensor)
    if why is not None:
        raise Unsupported("numpy", f"the array of {why}")
    numpy_dtype(tensor.fake.dtype)
    return ArrayValue(tensor, is_of_tensor=True)


def first_warning_of(call: Callable[[], Any]) -> str | None:
    """What a call warns of first, under filters that show everything; None if of nothing."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    return str(said[0].message) if said else None


def note_numpy_calls(tensor: TensorValue, calls: int) -> TensorValue:
    """Tell the cost model (`output.profitability`) that so many of NumPy's own calls stand behind the node of this tensor."""
    if tensor.known_node is not None:
        tensor.known_node.meta["numpy_calls"] = calls
    return tensor


def in_graph(tx: TraceContext, function: Callable[..., Any], *args: Any, **kwargs: Any) -> TensorValue:
    """A call of a torch function on tensors, other Values and constants, as a tensor of the graph."""
    if torch.is_autocast_enabled("cpu"):
        raise Unsupported("numpy", "a call under autocast, which NumPy knows nothing of")
    given = [arg if isinstance(arg, Value) else Constant(arg) for arg in args]
    named = {name: arg if isinstance(arg, Value) else Constant(arg) for name, arg in kwargs.items()}
    found = tx.run_in_graph("call_function", function, given, named)
    assert isinstance(found, TensorValue)
    return note_numpy_calls(found, 1)


def fresh(tx: TraceContext, array: ArrayValue) -> TensorValue:
    """The tensor of an array, in memory of its own and with the elements in the order of C."""
    return in_graph(tx, torch.clone, array.tensor, memory_format=torch.contiguous_format)


_MOST_CONSTANTS = 4096


def constant_array(tx: TraceContext, real: Any) -> ArrayValue:
    """An array that the program makes from constants: a new one at every call."""
    dtype = torch_dtype(real.dtype)
    if real.size > _MOST_CONSTANTS:
        raise Unsupported("numpy", f"an array of {real.size} constants")
    if real.size and real.tobytes() == real.flat[0].tobytes() * real.size:  # -0.0 equals 0.0
        value = real.flat[0].item()
        return ArrayValue(in_graph(tx, torch.full, tuple(real.shape), value, dtype=dtype, device="cpu"))
    if real.size == 0:
        return ArrayValue(in_graph(tx, torch.zeros, tuple(real.shape), dtype=dtype, device="cpu"))
    return ArrayValue(in_graph(tx, torch.tensor, real.tolist(), dtype=dtype, device="cpu"))
