"""Tensors of subclasses of `torch.Tensor` that override PyTorch's functions by `__torch_function__`.

    y = x.as_subclass(Tagged) + 1     =>     Tagged.__torch_function__(torch.Tensor.add, (Tagged,), (x', 1))

The graph computes with plain tensors only: every such tensor stands for one, an alias of the same elements. Its class, its attributes and
`__torch_function__` are the program's Python, and traced. The elements of subclasses with a `__torch_dispatch__` of their own are
elsewhere: see `dispatched_tensors`.

Which function PyTorch hands to `__torch_function__` for a method or an operator is asked of PyTorch (`_function_asked`).
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.class_facts import is_subtype, qualname_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import AliasSource
from treadle_tracer.values.base import NONE, ConcreteValue, Constant, Method, boolean, is_none, settled
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.function_overrides import (
    dispatch,
    dispatch_from_c,
    is_overriding_class,
    overriding,
    with_items,
    without_overrides,
)
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.originals import is_original
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import METADATA, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_ATTRIBUTES = METADATA - {"is_leaf"} | {"T", "mT", "H", "mH", "real", "imag", "data"}
"""Attributes that the alias has as the tensor itself has them."""

_NOT_OF_AN_ALIAS = frozenset(
    "retain_grad register_hook register_post_accumulate_grad_hook data_ptr set_ resize_ resize_as_ share_memory_ "
    "_is_view __hash__ __deepcopy__ __reduce_ex__".split()
)
"""Methods that look at, or change, the tensor object itself."""


class OverridingTensor(ObjectValue):
    """A tensor of a subclass of `torch.Tensor`, which PyTorch's functions may ask what to do."""

    __slots__ = ()

    def is_overriding(self, tx: TraceContext) -> bool:
        """Whether PyTorch's functions ask the class at present."""
        return not tx.overrides_off and is_overriding_class(tx, self.cls)

    def hash_key(self, tx: TraceContext) -> Any:
        return self if lookup(tx, self.cls, "__hash__") is torch.Tensor.__hash__ else super().hash_key(tx)

    # ---- attributes and methods of torch.Tensor

    def own_attribute(self, tx: TraceContext, name: str) -> Value:
        """An attribute of torch.Tensor, one of `_ATTRIBUTES`, where nobody is asked."""
        raise NotImplementedError

    def plain_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """PyTorch's own method, which asks no `__torch_function__`. In place, it gives this tensor."""
        raise NotImplementedError

    def slot_attr(self, tx: TraceContext, raw: Any, name: str) -> Value:
        if not _is_of_tensors(raw):
            return super().slot_attr(tx, raw, name)
        if self.is_overriding(tx):
            return dispatch(tx, Getter(raw), [self], [self], None)
        if name not in _ATTRIBUTES:
            raise Unsupported("tensor-attribute", f".{name} of {self.describe()}")
        return self.own_attribute(tx, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        if isinstance(lookup(tx, torch.Tensor, name), (types.GetSetDescriptorType, property)):
            raise Unsupported("tensor-attribute", f"assignment to .{name} of {self.describe()}")
        super().set_attr(tx, name, value)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raw = lookup(tx, torch.Tensor, name)
        if raw is MISSING or not _is_of_tensors(raw):
            return super().builtin_method(tx, name, args, kwargs)
        if not is_original(torch.Tensor, name, raw):
            raise Unsupported("tensor-method", f"{name} of {self.describe()}")
        result = call_override_of_method(tx, self, name, args, kwargs)
        return self.plain_method(tx, name, args, kwargs) if result is None else result


class SubclassedTensor(OverridingTensor):
    """A tensor of a subclass with elements. tensor: the plain tensor that stands for it in the graph, and for nothing else."""

    __slots__ = ("tensor",)

    def __init__(self, cls: type, tensor: TensorValue, obj: torch.Tensor | None = None, source: Source | None = None):
        super().__init__(cls, obj, source)
        self.tensor = tensor

    def plain(self, tx: TraceContext) -> TensorValue:
        """The tensor as PyTorch's own functions take it."""
        if self.is_overriding(tx):
            raise Unsupported("tensor-subclass", f"{self.describe()} in a function that asks no __torch_function__")
        return self.tensor

    def own_attribute(self, tx: TraceContext, name: str) -> Value:
        return self.tensor.get_attr(tx, name)

    def plain_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "as_subclass":
            return as_subclass(tx, self, *args)
        if name in _NOT_OF_AN_ALIAS:
            raise Unsupported("tensor-method", f"{name} of {self.describe()}")
        if name == "__bool__":
            return boolean(self.tensor.truth(tx))
        with without_overrides(tx):
            result = tx.tensor_method(self.tensor, name, args, kwargs)
        return self if result is self.tensor else result

    # ---- out of the trace

    def emit_new(self, cg: Any) -> None:
        fake = self.tensor.fake
        if fake.requires_grad and fake.is_leaf:  # an alias of a leaf is none, and has no gradient of its own
            raise Unsupported("reconstruct", f"{self.describe()}, which is a leaf", made_at=self.tensor.leaf_made_at)
        cg.cb.push_null()
        cg.const(torch.Tensor.as_subclass)
        cg.value(self.tensor)
        cg.const(self.cls)
        cg.cb.call(2)


class Getter(Method):
    """`torch.Tensor.shape.__get__`, as PyTorch hands it to `__torch_function__` where an attribute is read.

    Every read of `__get__` makes another object, and all of one descriptor are equal.
    """

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: Any):
        super().__init__(ConcreteValue(descriptor), "__get__", descriptor.__get__)
        self.descriptor = descriptor

    def python_type(self) -> type:
        return types.MethodWrapperType

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        owner = args[0]
        if isinstance(owner, OverridingTensor):
            return owner.slot_attr(tx, self.descriptor, self.descriptor.__name__)
        if not isinstance(owner, TensorValue):
            raise Unsupported("tensor-attribute", f".{self.descriptor.__name__} of {owner.describe()}")
        return owner.get_attr(tx, self.descriptor.__name__)


class OverridesOff(ObjectValue):
    """`torch._C.DisableTorchFunctionSubclass()`, for a `with` statement inside `__torch_function__`."""

    __slots__ = ()

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in ("__enter__", "__exit__"):
            return super().builtin_method(tx, name, args, kwargs)
        tx.overrides_off += 1 if name == "__enter__" else -1
        return NONE

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", self.describe())


def overrides_off(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch._C.DisableTorchFunctionSubclass()`. Outside of `__torch_function__`, where the graph may break inside, Python runs it."""
    if not tx.dispatches:
        raise Unsupported("global-state", "torch._C.DisableTorchFunctionSubclass")
    return OverridesOff(torch._C.DisableTorchFunctionSubclass)


def _is_of_tensors(raw: Any) -> bool:
    """Whether a descriptor implemented in C is one of PyTorch's for tensors."""
    return getattr(raw, "__objclass__", None) is torch._C.TensorBase


def _as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """An alias that is a plain tensor, differentiable in any grad mode. No `__torch_function__` is asked."""
    was_enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(True)
    try:
        return torch.Tensor.as_subclass(tensor, torch.Tensor)
    finally:
        torch._C._set_grad_enabled(was_enabled)


def is_dispatching(cls: type) -> bool:
    """Whether the class of a tensor overrides PyTorch's operators."""
    return cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore[attr-defined]


def why_not_subclass(cls: type, dispatching: bool = False) -> str | None:
    """Why tensors of a class cannot be followed, or None. dispatching: whether they may override PyTorch's operators."""
    if not is_subtype(cls, torch.Tensor) or is_subtype(cls, torch.nn.Parameter) or is_subtype(cls, torch.nn.Buffer):
        return "is no subclass of torch.Tensor alone"
    if is_dispatching(cls) and not dispatching:
        return "overrides PyTorch's operators by __torch_dispatch__"
    function = cls.__torch_function__
    if not isinstance(function, types.MethodType) and function is not torch._C._disabled_torch_function_impl:
        return "has no class method __torch_function__"
    return None


def is_subclassed(obj: torch.Tensor) -> bool:
    """Whether an outside tensor is one of such a subclass."""
    return type(obj) is not torch.Tensor and why_not_subclass(type(obj)) is None


def wrap_subclassed(tx: TraceContext, obj: torch.Tensor, source: Source) -> SubclassedTensor:
    """The Value of an outside tensor of such a subclass."""
    cls = type(obj)
    tx.guards.add(source, "type_is", cls)
    _rely_on_dispatch(tx, cls)
    alias = tx.wrap_tensor(_as_plain(obj), AliasSource(source, _as_plain))
    return SubclassedTensor(cls, alias, obj, source)


def as_subclass(tx: TraceContext, owner: TensorValue | OverridingTensor, cls_value: Value) -> Value:
    """`owner.as_subclass(cls)`: an alias of that class, without attributes of its own."""
    if not isinstance(owner, (TensorValue, SubclassedTensor)):
        raise Unsupported("tensor-subclass", f"{owner.describe()}.as_subclass")
    tensor = owner.tensor if isinstance(owner, SubclassedTensor) else owner
    cls = cls_value.constant()
    why_not = None if cls is torch.Tensor else why_not_subclass(cls)
    if why_not is not None:
        raise Unsupported("tensor-subclass", f"{qualname_of(cls)} {why_not}")
    with without_overrides(tx):
        alias = tx.run_in_graph("call_function", torch.ops.aten.alias.default, [tensor], {})
    assert isinstance(alias, TensorValue)
    if cls is torch.Tensor:
        return alias
    _rely_on_dispatch(tx, cls)
    return SubclassedTensor(cls, alias)


def new_subclassed(tx: TraceContext, cls: type, args: list[Value], kwargs: dict[str, Value]) -> SubclassedTensor:
    """`torch.Tensor.__new__(cls, tensor)`: an alias of that class (torch/csrc/utils/tensor_new.cpp, new_with_tensor)."""
    given = settled(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(given, (TensorValue, SubclassedTensor)):
        raise Unsupported("new-builtin-subclass", f"{cls.__qualname__} is a subclass of torch.Tensor")
    made = as_subclass(tx, given, Constant(cls))
    assert isinstance(made, SubclassedTensor)
    return made


def _rely_on_dispatch(tx: TraceContext, cls: type) -> None:
    for name in ("__torch_dispatch__", "__torch_function__"):
        lookup(tx, cls, name)


def call_override_of_method(
    tx: TraceContext, owner: Value, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]
) -> Value | None:
    """What `owner.name(*args, **kwargs)` of torch.Tensor gives where one of these overrides it; None where none does, or is not asked."""
    found = overriding(tx, with_items([owner, *args, *kwargs.values()]))
    if not found:
        return None
    try:
        function = _function_asked(name, args, kwargs)
    except Exception as error:
        raise Unsupported("torch-call-raises", f"{name} of {owner.describe()}: {error}") from error
    return None if function is None else dispatch_from_c(tx, function, found, [owner, *args], dict(kwargs))


class _Asked(Exception):
    """`__torch_function__` has been asked for this function."""


class _Probe(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Asked(func)


def _function_asked(name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Any:
    """The function that PyTorch hands to `__torch_function__` for this method of a tensor, None if it asks nobody.

    Raises what the method raises for arguments of these kinds.
    """
    probe = torch.Tensor._make_subclass(_Probe, torch.empty(0))
    try:
        getattr(torch.Tensor, name)(probe, *map(_example, args), **{key: _example(v) for key, v in kwargs.items()})
    except _Asked as asked:
        return asked.args[0]
    return None


def _example(value: Value) -> Any:
    """An argument that PyTorch's parser takes for the same. It does not tell tensors apart, nor numbers."""
    cls = value.python_type()
    if is_subtype(cls, torch.Tensor):
        return torch.empty(0)
    if isinstance(value, (ListValue, TupleValue)):
        items = map(_example, value.items)
        return list(items) if is_subtype(cls, list) else tuple(items)
    return value.constant() if value.is_constant() else cls(1)


# ---- torch.Tensor's own __torch_function__


def default_override(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.Tensor.__torch_function__`: the function computes with plain tensors, and its results are of the class.

    Attributes that are other tensors (`grad`, `_base`) are given as they are (torch.overrides.get_default_nowrap_functions).
    """
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    cls = given["cls"].constant()
    if not all(issubclass(cls, kind.constant()) for kind in given["types"].unpack(tx)):
        return Constant(NotImplemented)
    function, named = given["func"], given.get("kwargs")
    mapping = None if named is None or is_none(named) else named.as_dict(tx)
    values = {} if mapping is None else {key.constant(): value for key, value in mapping.items(tx)}
    with without_overrides(tx):
        result = call_plain(tx, function, given["args"].unpack(tx) if "args" in given else [], values)
    is_kept = function.is_constant() and function.constant() in torch.overrides.get_default_nowrap_functions()
    return result if is_kept else _converted(tx, result, cls)


def call_plain(tx: TraceContext, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`function(*args, **kwargs)`. An operator that torch.Tensor has in Python is one of the plain tensor, not code to trace."""
    method = getattr(function, "obj", None)
    if args and isinstance(args[0], OverridingTensor) and isinstance(method, types.FunctionType):
        name = method.__name__
        is_operator = name == "backward" or operator_record(name) is not None
        if is_operator and vars(torch.Tensor).get(name) is method:
            return args[0].plain_method(tx, name, args[1:], kwargs)
    return function.call(tx, args, kwargs)


def _converted(tx: TraceContext, value: Value, cls: type) -> Value:
    """torch/_tensor.py, `_convert`"""
    if cls is torch.Tensor:
        return value
    if isinstance(value, (TensorValue, OverridingTensor)) and not issubclass(value.python_type(), cls):
        return as_subclass(tx, value, Constant(cls))
    if isinstance(value, TupleValue):
        return TupleValue([_converted(tx, item, cls) for item in value.unpack(tx)], value.cls)
    if isinstance(value, ListValue):
        return ListValue([_converted(tx, item, cls) for item in value.unpack(tx)], value.cls)
    return value
