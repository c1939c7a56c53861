"""Lengths of sequences that differ within a batch: the number that stands for them among the sizes of a jagged tensor.

    x.shape     (3, j1, 64)     three sequences of their own lengths, each of 64 numbers

PyTorch's number (torch/nested/_internal/nested_int.py) is equal to itself only, and has multiples. All else that is asked of it raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant, boolean
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class RaggedLength(Value):
    """`sym`: PyTorch's number. `ragged`: the tensor that stands for the lengths, the offsets of sequences or their lengths."""

    __slots__ = ("ragged", "sym")

    def __init__(self, sym: torch.SymInt, ragged: TensorValue):
        self.source = None
        self.sym = sym
        self.ragged = ragged

    def python_type(self) -> type:
        return torch.SymInt

    def describe(self) -> str:
        return f"the ragged length {self.sym}"

    def truth(self, tx: TraceContext) -> bool:
        return True  # PyTorch takes such a number for one of 2 at least

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_length_of)
        cg.value(self.ragged)
        cg.const(self.sym.node.nested_int_coeff())
        cg.cb.call(2)


def is_ragged(number: Any) -> bool:
    """Whether a number is PyTorch's for lengths that differ."""
    return isinstance(number, torch.SymInt) and bool(number.node.is_nested_int())


def new_length() -> torch.SymInt:
    """A number for lengths that are those of no other tensor."""
    from torch.nested._internal.nested_int import NestedIntNode

    node: Any = NestedIntNode(next(_NUMBERS), 1)
    return torch.SymInt(node)


def _numbers() -> Any:
    number = -1  # those of PyTorch count from 0
    while True:
        yield number
        number -= 1


_NUMBERS = _numbers()


def _length_of(ragged: torch.Tensor, times: int) -> Any:
    from torch.nested._internal.nested_tensor import get_tensor_symint

    length = get_tensor_symint(ragged, coeff=1)
    return length if times == 1 else length * times


def operate(tx: TraceContext, function: Callable[..., Any], a: Value, b: Value) -> Value:
    """An operator, or a comparison, of which one operand is such a length. Raises Unsupported where PyTorch raises."""
    for value in (a, b):
        if not isinstance(value, RaggedLength | SymbolicValue) and not (
            value.is_constant() and type(value.constant()) in (int, bool)
        ):
            raise Unsupported("call", f"{function.__name__} of {a.describe()} and {b.describe()}")
    if isinstance(a, SymbolicValue) or isinstance(b, SymbolicValue):  # a size, which is equal to none
        if function not in (operator.eq, operator.ne):
            raise Unsupported("call", f"{function.__name__} of {a.describe()} and {b.describe()}")
        return boolean(function is operator.ne)
    owner = a if isinstance(a, RaggedLength) else b
    assert isinstance(owner, RaggedLength)
    one, other = (value.sym if isinstance(value, RaggedLength) else value.constant() for value in (a, b))
    try:
        result = function(one, other)
        if not is_ragged(result):
            return Constant(bool(result)) if isinstance(result, bool | torch.SymBool) else _refuse(function, a, b)
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return _refuse(function, a, b)
    return RaggedLength(result, owner.ragged)


def _refuse(function: Callable[..., Any], a: Value, b: Value) -> Value:
    raise Unsupported("call", f"{function.__name__} of {a.describe()} and {b.describe()}")
