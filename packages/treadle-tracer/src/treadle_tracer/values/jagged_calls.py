"""Calls of torch with jagged tensors: which operators PyTorch asks for, and the Python code by which it carries each out.

    F.linear(x, w)      =>      aten.linear.default(x, w)       =>      NestedTensor(aten.linear.default(x._values, w), offsets=x._offsets)

PyTorch carries operators out below autograd, and has derivatives for jagged tensors. Here they are traced above it: gradients are those of
the plain operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C import DispatchKey, DispatchKeySet

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.operator_calls import DispatchedTensor, OperatorCall, current_call, example
from treadle_tracer.values.ragged_lengths import RaggedLength, is_ragged
from treadle_tracer.values.sequences import Sequence as SequenceValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

aten = torch.ops.aten
_COMPOSITE = (DispatchKey.CompositeImplicitAutogradNestedTensor, DispatchKey.CompositeImplicitAutograd)
_VALUES = (aten._nested_get_values.default, aten.values.default)


class JaggedParts(Protocol):
    """What a stand-in is made of: see `jagged_tensors.JaggedTensor`."""

    values: TensorValue
    lengths: Value
    ragged_dim: int

    def sizes(self) -> list[Any]: ...


class JaggedStandIn(torch.Tensor):
    """Has the metadata of a jagged tensor of the trace, and hands every operator to the call that is being traced."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    of_sizes: list[Any]
    of_values: torch.Tensor
    has_holes: bool
    ragged_dim: int

    @staticmethod
    def of(tensor: JaggedParts) -> JaggedStandIn:
        """A stand-in. PyTorch asks it for sizes and strides; those that it is made with are never seen."""
        keys = DispatchKeySet(DispatchKey.NestedTensor).add(DispatchKey.AutogradNestedTensor)
        values, ones = tensor.values.fake, (1,) * (tensor.values.fake.dim() + 1)
        made: JaggedStandIn = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            JaggedStandIn, ones, ones, 0, torch.contiguous_format, values.dtype, torch.jagged, values.device,
            False, False, "sizes", False, True, keys, storage_size=values.element_size(),
        )  # fmt: skip
        made.of_sizes, made.of_values, made.has_holes = tensor.sizes(), values, isinstance(tensor.lengths, TensorValue)
        made.ragged_dim = tensor.ragged_dim
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = _METADATA.get(func)
        if answer is not None and isinstance(args[0], JaggedStandIn):
            return answer(*args, **(kwargs or {}))
        return current_call().operator(func, args, kwargs)


def _strides(of: JaggedStandIn) -> list[Any]:
    strides = of.of_values.stride()
    return [of.of_sizes[of.ragged_dim] * strides[of.ragged_dim - 1], *strides]


def _count(of: JaggedStandIn) -> Any:
    if of.has_holes:
        raise RuntimeError("how many elements a jagged tensor with holes has is in its lengths")
    return of.of_values.numel()


def _is_contiguous(of: JaggedStandIn, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    if memory_format is torch.preserve_format:
        return not of.has_holes
    return not of.has_holes and of.of_values.is_contiguous(memory_format=memory_format)


_METADATA: dict[Any, Any] = {
    aten.sym_size.default: lambda of: of.of_sizes,
    aten.sym_stride.default: _strides,
    aten.sym_storage_offset.default: lambda of: of.of_values.storage_offset(),
    aten.dim.default: lambda of: len(of.of_sizes),
    aten.numel.default: _count,
    aten.sym_numel.default: _count,
    aten.is_contiguous.default: _is_contiguous,
    aten.is_contiguous.memory_format: _is_contiguous,
    aten.sym_is_contiguous.default: _is_contiguous,
    aten.is_non_overlapping_and_dense.default: lambda of: False,
    torch.ops.prim.layout.default: lambda of: torch.jagged,
}
"""What PyTorch asks a jagged tensor for when it reads its metadata (torch/nested/_internal/nested_tensor.py)."""


class JaggedCall(OperatorCall):
    """A call of torch with jagged tensors. Autograd sees what the graph does with their values, and nothing of the call itself."""

    def begin(self) -> bool:
        self._is_given = True
        return False

    def note_shared_versions(self) -> None:
        """Versions are those of the values."""

    def value(self, obj: Any) -> Value:
        if is_ragged(obj):
            return self._ragged_length(obj)
        if isinstance(obj, torch.Size):
            return TupleValue([self.value(size) for size in obj], torch.Size)
        return super().value(obj)

    def _ragged_length(self, number: torch.SymInt) -> Value:
        for tensor in self._tx.dispatched:
            length = getattr(tensor, "length", None)
            if isinstance(length, RaggedLength) and length.sym.node.nested_int() == number.node.nested_int():
                return length if length.sym is number else RaggedLength(number, length.ragged)
        raise Unsupported(
            "tensor-subclass", f"{self._name}, which gives the length of no tensor that the trace has seen"
        )

    def _stand_in(self, value: TensorValue | DispatchedTensor) -> torch.Tensor:
        if isinstance(value, DispatchedTensor):
            made = value.stand_in
            if not isinstance(made, JaggedStandIn):
                raise Unsupported("tensor-subclass", f"{self._name} of a jagged tensor beside {value.describe()}")
        else:
            known = self._plain.get(id(value))
            made = example(value.fake, requires_grad=False) if known is None else known
            self._plain[id(value)] = made
        self._values[id(made)] = made, value
        return made

    def _without_gradients(self, value: Value) -> Value:
        return value

    def _check_history(self, value: Value) -> None:
        """Raise Unsupported for a view in no_grad of values with gradients: whether it requires any depends on what it is a view of."""
        if isinstance(value, SequenceValue):
            for item in value.items:
                self._check_history(item)
        made = value.stand_in.of_values if isinstance(value, DispatchedTensor) else getattr(value, "fake", None)  # type: ignore[attr-defined]
        if isinstance(made, torch.Tensor) and made.requires_grad and not torch.is_grad_enabled():
            raise Unsupported("tensor-subclass", f"{self._name} in no_grad, a view of a jagged tensor with gradients")

    def carry_out(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The operator, as PyTorch's own code for it does it."""
        tx = self._tx
        if function in _VALUES:
            jagged: Any = args[0]
            values = tx.run_in_graph("call_function", aten.alias.default, [jagged.values], {})
            self._check_history(values)
            return values
        returns = function._schema.returns
        writes = bool(returns) and returns[0].alias_info is not None and returns[0].alias_info.is_write
        if writes and args[0].source is not None and args[0].get_attr(tx, "requires_grad").truth(tx):
            raise Unsupported(
                "tensor-subclass", f"{function}, which writes to a jagged tensor with gradients from outside"
            )
        implementation, given = _implementation(tx, function, args)
        if implementation is None:
            raise Unsupported("tensor-subclass", f"{function} of a jagged tensor, which PyTorch does not carry out")
        result = tx.inline(FunctionValue.outside(tx, implementation, ConstSource(implementation)), given, kwargs)
        if writes:
            return args[0]
        self._check_history(result)
        if isinstance(result, DispatchedTensor) and any(result is value for value in args):
            return result.again(tx)  # type: ignore[attr-defined, no-any-return]
        return result

    def operator(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        if not _is_carried_out(function):
            for key in _COMPOSITE:  # in inference mode PyTorch has not taken it apart
                if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key):  # type: ignore[attr-defined]
                    with torch.overrides.enable_reentrant_dispatch():
                        return function._op_dk(key, *args, **(kwargs or {}))
        return super().operator(function, args, kwargs)


def _is_carried_out(function: Any) -> bool:
    from torch.nested._internal.ops import JAGGED_OPS_TABLE

    return function in _VALUES or function in JAGGED_OPS_TABLE or torch.Tag.pointwise in function.tags


def _implementation(tx: TraceContext, function: Any, args: list[Value]) -> tuple[Any, list[Value]]:
    """PyTorch's Python function for an operator of jagged tensors, and its arguments; None where there is none."""
    from torch.nested._internal import ops

    known = ops.JAGGED_OPS_TABLE.get(function)
    if known is not None:
        return known, args
    if torch.Tag.pointwise not in function.tags or any(isinstance(value, RaggedLength) for value in args):
        return None, args
    count = sum(isinstance(value, TensorValue | DispatchedTensor) for value in args)
    pointwise = {1: ops.jagged_unary_pointwise, 2: ops.jagged_binary_pointwise}.get(count)
    return pointwise, [tx.wrap_known(function), *args]
