"""NumPy's universal functions of tensors: `np.log(tensor)` is a tensor.

NumPy makes arrays of the arguments, computes, and hands the result to `Tensor.__array_wrap__` of the first tensor among them, which gives a
tensor on the memory of the result. NumPy 2 says that the method should take more arguments, in a warning per call.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.array_ufuncs import call_ufunc
from treadle_tracer.values.arrays import ArrayValue, array_of, first_warning_of, in_graph, numpy_module
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.deferred_warnings import warn
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def takes_tensors(ufunc: Any, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a universal function is called with a tensor, and makes its result itself."""
    return len(args) == ufunc.nin and "out" not in kwargs and any(map(_is_tensor, args))


def call_ufunc_of_tensors(tx: TraceContext, ufunc: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`ufunc(*args, **kwargs)` for which `takes_tensors`"""
    given = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
    for arg in given:
        if isinstance(arg, TensorValue) and not is_one_of(arg.python_type(), (torch.Tensor, torch.nn.Parameter)):
            raise Unsupported("numpy", f"numpy.{ufunc.__name__} of a subclass of Tensor")
    found = call_ufunc(tx, ufunc, [array_of(arg) if isinstance(arg, TensorValue) else arg for arg in given], kwargs)
    if not isinstance(found, ArrayValue):
        raise Unsupported("numpy", f"numpy.{ufunc.__name__} of tensors")
    if (text := _warning_of_wrapping()) is not None:
        warn(tx, Constant(text), DeprecationWarning)
    if found.tensor.fake.dtype is torch.bool:
        return in_graph(tx, torch.Tensor.to, found.tensor, torch.uint8)
    return found.tensor


def _is_tensor(value: Value) -> bool:
    return isinstance(value, (LazyValue, TensorValue)) and is_subtype(value.python_type(), torch.Tensor)


@functools.cache
def _warning_of_wrapping() -> str | None:
    """What NumPy says when it has a tensor wrap a result; None if it says nothing."""
    return first_warning_of(lambda: numpy_module().negative(torch.zeros(1)))
