"""Jagged tensors: batches of sequences of different lengths (`torch.nested` with `layout=torch.jagged`).

    x       (3, j1, 64)         _values (17, 64), the sequences one behind the other, and _offsets [0, 5, 8, 17]

The graph has the plain tensors only. PyTorch carries out operators of jagged tensors in Python (torch/nested/_internal/ops.py), and that
code is traced (`jagged_calls`); gradients are those of the plain tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.below_autograd import is_below_autograd
from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import AliasSource
from treadle_tracer.values.base import NONE, Constant, LazyValue, boolean, is_none
from treadle_tracer.values.class_lookup import instance_dict_source
from treadle_tracer.values.jagged_calls import JaggedCall, JaggedStandIn
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.operator_calls import DispatchedTensor
from treadle_tracer.values.ragged_lengths import RaggedLength, new_length
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_MODULE = "torch.nested._internal.nested_tensor"
_PARTS = {"_values": "values", "_offsets": "offsets", "_lengths": "lengths", "_metadata_cache": "cache"}


def jagged_class() -> type | None:
    """The class of jagged tensors, if the program has imported it."""
    module = sys.modules.get(_MODULE)
    return getattr(module, "NestedTensor", None)


def is_jagged(obj: torch.Tensor) -> bool:
    """Whether an outside tensor is a jagged one."""
    return type(obj) is not torch.Tensor and type(obj) is jagged_class()


class JaggedTensor(DispatchedTensor):
    """`values`, `offsets` and `lengths` (or None) are tensors of the graph, `cache` a dict with tensors whose sizes are the least and the
    greatest length. The dimension `ragged_dim` (1 and up) is the one of the sequences. `length` is its size."""

    __slots__ = ("cache", "length", "lengths", "offsets", "ragged_dim", "values")

    def __init__(
        self,
        tx: TraceContext,
        parts: tuple[TensorValue, TensorValue, Value, Value],
        ragged_dim: int,
        obj: torch.Tensor | None = None,
        source: Source | None = None,
    ):
        cls = jagged_class()
        assert cls is not None
        self.values, self.offsets, self.lengths, self.cache = parts
        self.ragged_dim = ragged_dim
        self.length = _length_of(tx, self)
        super().__init__(cls, JaggedStandIn.of(self), obj, source)
        tx.dispatched.append(self)

    @property
    def ragged(self) -> TensorValue:
        """The tensor that stands for the lengths of the sequences: tensors that share it have the same."""
        return self.lengths if isinstance(self.lengths, TensorValue) else self.offsets

    def sizes(self) -> list[Any]:
        """The sizes, numbers of PyTorch."""
        inner = list(self.values.fake.shape)
        inner[self.ragged_dim - 1] = self.length.sym
        return [self.offsets.fake.shape[0] - 1, *inner]

    def new_call(self, tx: TraceContext, name: str) -> JaggedCall:
        return JaggedCall(tx, name)

    def new_stand_in(self) -> torch.Tensor:
        return JaggedStandIn.of(self)

    def again(self, tx: TraceContext) -> JaggedTensor:
        """Another tensor with the same parts: what an operator gives that is no new tensor in the graph."""
        return JaggedTensor(tx, (self.values, self.offsets, self.lengths, self.cache), self.ragged_dim)

    # ---- attributes

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in _PARTS:
            found: Value = getattr(self, _PARTS[name])
            return found
        if name == "_ragged_idx":
            return Constant(self.ragged_dim)
        if name == "_size":
            return self._numbers(tx, self.sizes())
        if name == "_strides":
            stride = self.values.fake.stride()
            if type(stride[self.ragged_dim - 1]) is not int:  # PyTorch's number has no such multiples
                raise Unsupported(
                    "tensor-attribute", f".{name} of {self.describe()}, of sequences whose features change"
                )
            return self._numbers(tx, [self.length.sym * stride[self.ragged_dim - 1], *stride])
        return super().get_attr(tx, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        raise Unsupported("tensor-attribute", f"assignment to .{name} of {self.describe()}")

    def own_attribute(self, tx: TraceContext, name: str) -> Value:
        if name == "requires_grad":
            return boolean(self.values.fake.requires_grad)
        if name == "is_leaf":
            return boolean(not self.values.fake.requires_grad if self.obj is None else self.obj.is_leaf)
        return super().own_attribute(tx, name)

    def plain_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "is_inference":
            return tx.tensor_method(self.values, name, args, kwargs)
        if name == "requires_grad_" and not self.values.fake.requires_grad:
            asks = args[0] if args else kwargs.get("requires_grad")
            if asks is not None and asks.is_constant() and not asks.truth(tx):
                return self
        return super().plain_method(tx, name, args, kwargs)

    def _numbers(self, tx: TraceContext, numbers: Sequence[Any]) -> TupleValue:
        return TupleValue([self._number(tx, number) for number in numbers])

    def _number(self, tx: TraceContext, number: Any) -> Value:
        if type(number) is int:
            return Constant(number)
        if number.node.is_nested_int():
            return self.length if number is self.length.sym else RaggedLength(number, self.ragged)
        return tx.symbols.computed(tx, number)

    # ---- out of the trace

    def emit_new(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_new_jagged)
        for part in (self.values, self.offsets, self.lengths, self.cache):
            cg.value(part)
        cg.const(self.ragged_dim)
        cg.cb.call(5)


def _length_of(tx: TraceContext, made: JaggedTensor) -> RaggedLength:
    """The size of the ragged dimension, the same for all tensors whose lengths are one tensor."""
    for other in tx.dispatched:
        if isinstance(other, JaggedTensor) and other.ragged is made.ragged:
            return other.length
    return RaggedLength(new_length(), made.ragged)


# ---- tensors from outside


class _HasMetadata(GuardCallable):
    """A jagged tensor has these metadata."""

    __slots__ = ()

    def __call__(self, obj: torch.Tensor) -> bool:
        return bool(_metadata(obj) == self.question)


def _metadata(obj: Any) -> tuple[Any, ...]:
    with torch._C.DisableTorchFunctionSubclass():
        keys = torch._C._dispatch_keys(obj).raw_repr()  # type: ignore[attr-defined]
        return obj._ragged_idx, obj._lengths is None, obj.requires_grad, keys


def _differentiable_values(obj: Any) -> torch.Tensor:
    """The values as autograd knows them, in any grad mode. Raises TypeError for any other object, which a later call may have there."""
    if type(obj) is not jagged_class():
        raise TypeError(f"{type(obj).__qualname__} is no jagged tensor")
    was_enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    try:
        return torch._nested_get_values(obj)  # type: ignore[attr-defined, no-any-return]
    finally:
        torch._C._set_grad_enabled(was_enabled)


def wrap_jagged(tx: TraceContext, obj: Any, source: Source) -> Value:
    """The Value of an outside jagged tensor."""
    if is_below_autograd():
        raise Unsupported("tensor-kind", f"{source.text} in a function that runs below autograd")
    tx.guards.add(source, "type_is", type(obj))
    if obj.requires_grad and tx.has_set_state(torch._C._set_grad_enabled, ()):
        # A view of its values, made at the start, does not survive what is written to them in no_grad before the program takes the tensor.
        raise Unsupported(
            "tensor-kind", f"{source.text}, a jagged tensor with gradients, behind a switch of the grad mode"
        )
    tx.guards.add(
        source, "call", _HasMetadata(_metadata(obj)), f"{source.text} has its ragged dimension and other metadata"
    )

    def part(name: str) -> Value:
        found = tx.wrap(vars(obj)[name], instance_dict_source(tx, obj, source, name))
        return found.force(tx) if isinstance(found, LazyValue) else found

    if obj.requires_grad:
        values: Value = tx.wrap_tensor(_differentiable_values(obj), AliasSource(source, _differentiable_values))
    else:
        values = part("_values")
    offsets, lengths = part("_offsets"), part("_lengths")
    if not isinstance(values, TensorValue) or not isinstance(offsets, TensorValue):
        raise Unsupported("tensor-kind", f"{source.text}, a jagged tensor of others than plain tensors")
    return JaggedTensor(tx, (values, offsets, lengths, part("_metadata_cache")), obj._ragged_idx, obj, source)


# ---- tensors that the program makes


def new_jagged(
    tx: TraceContext,
    values: Value,
    offsets: Value,
    lengths: Value = NONE,
    ragged_dim: Value | None = None,
    cache: Value | None = None,
) -> JaggedTensor:
    """`NestedTensor(values, offsets, lengths=, _ragged_idx=, _metadata_cache=)`"""
    values, offsets, lengths = (v.force(tx) if isinstance(v, LazyValue) else v for v in (values, offsets, lengths))
    if not isinstance(values, TensorValue) or not isinstance(offsets, TensorValue) or offsets.fake.dim() != 1:
        raise Unsupported("tensor-subclass", f"a jagged tensor of {values.describe()} and {offsets.describe()}")
    if not is_none(lengths) and not isinstance(lengths, TensorValue):
        raise Unsupported("tensor-subclass", f"a jagged tensor of the lengths {lengths.describe()}")
    if values.fake.device != offsets.fake.device:
        raise Unsupported("tensor-subclass", "a jagged tensor whose offsets are on another device")
    if is_below_autograd():
        raise Unsupported("tensor-subclass", "a jagged tensor made below autograd")
    dim = 1 if ragged_dim is None else ragged_dim.constant()
    if cache is None or is_none(cache) or not cache.truth(tx):
        cache = DictValue({})
    return JaggedTensor(tx, (values, offsets, lengths, cache), dim)


def _new_jagged(
    values: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, cache: dict[str, Any], ragged_dim: int
) -> torch.Tensor:
    """A jagged tensor as the program has made it, with the history of its values."""
    from torch.nested._internal.nested_tensor import NestedTensor, _nt_view_dummy

    with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():  # whether it has a history, the values tell
        made: Any
        if not values.requires_grad:
            made = NestedTensor(values, offsets, lengths=lengths, _ragged_idx=ragged_dim)
        elif values._is_view():
            made = torch._nested_view_from_jagged(values, offsets, _nt_view_dummy(), lengths, ragged_dim)  # type: ignore[attr-defined]
        else:
            made = _OfValues.apply(values, offsets, lengths, ragged_dim)
        made._metadata_cache = cache  # the very dict: tensors share it, and what is to be stored in it may follow
        return made  # type: ignore[no-any-return]


class _OfValues(torch.autograd.Function):
    """A jagged tensor whose history is that of its values, and which is no view of them."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, offsets: Any, lengths: Any, ragged_dim: int) -> torch.Tensor:  # type: ignore[override]
        from torch.nested._internal.nested_tensor import NestedTensor

        return NestedTensor(values.detach(), offsets, lengths=lengths, _ragged_idx=ragged_dim)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return gradient.values(), None, None, None
