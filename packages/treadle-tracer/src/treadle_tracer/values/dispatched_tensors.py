"""Tensors of subclasses whose operators the program carries out in `__torch_dispatch__`: a quantised weight, a pair of tensors.

Such a tensor has no elements (`torch.Tensor._make_wrapper_subclass`): those are in tensors among its attributes, which the graph computes
with. The trace keeps its metadata, and follows `__torch_dispatch__` (`operator_calls`).
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from treadle_tracer.below_autograd import is_below_autograd
from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import ConstSource
from treadle_tracer.values.class_lookup import lookup
from treadle_tracer.values.operator_calls import DispatchedTensor, StandIn, example, plain_argument
from treadle_tracer.values.sequences import Sequence, TupleValue
from treadle_tracer.values.tensor_subclasses import is_dispatching, why_not_subclass
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_OPTIONS = frozenset("strides storage_offset dtype layout device requires_grad".split())


def is_dispatched(obj: torch.Tensor) -> bool:
    """Whether an outside tensor is one of such a subclass, without elements of its own."""
    cls = type(obj)
    return is_dispatching(cls) and why_not_dispatched(cls) is None and _why_no_wrapper(obj) is None


def why_not_dispatched(cls: type) -> str | None:
    """Why operators on tensors of a class cannot be traced, or None."""
    if not is_dispatching(cls):
        return why_not_subclass(cls) or "leaves PyTorch's operators as they are"
    if cls.__module__.partition(".")[0] == "torch":
        return "is one of PyTorch's own, whose metadata are kept elsewhere"
    if not isinstance(cls.__torch_dispatch__, types.MethodType):  # type: ignore[attr-defined]
        return "has no class method __torch_dispatch__"
    return why_not_subclass(cls, dispatching=True)


class _AsksForMetadata(Exception):
    """The metadata of a tensor are computed by its class."""


class _Refusing(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps __torch_dispatch__ in something that imports torch._dynamo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _AsksForMetadata(func)


def _why_no_wrapper(obj: torch.Tensor) -> str | None:
    """Why an object of such a class is more, or less, than metadata around other tensors; None if it is just that."""
    try:
        with _Refusing():
            _ = obj.shape, obj.device, obj.layout, obj.dtype
            if obj.layout is not torch.strided:
                return f"has the layout {obj.layout}"
            _ = obj.stride(), obj.storage_offset(), obj.is_contiguous()
    except _AsksForMetadata:
        return "computes its metadata"
    if _has_elements(obj):
        return "has elements of its own"
    other = torch._C._dispatch_keys(_stand_in_of(obj))  # type: ignore[attr-defined]
    return None if torch._C._dispatch_keys(obj) == other else "has other dispatch keys"  # type: ignore[attr-defined]


def _has_elements(obj: torch.Tensor) -> bool:
    try:
        return bool(obj.untyped_storage().data_ptr())
    except RuntimeError:  # there is no memory
        return False


def _stand_in_of(obj: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(obj.is_inference()):
        return example(obj)


# ---- tensors from outside


class _HasMetadata(GuardCallable):
    """A tensor of the class has these metadata."""

    __slots__ = ()

    def __call__(self, obj: torch.Tensor) -> bool:
        return bool(_metadata(obj) == self.question)


def _metadata(obj: torch.Tensor) -> tuple[Any, ...]:
    with torch._C.DisableTorchFunctionSubclass():
        layout = tuple(obj.shape), obj.stride(), obj.storage_offset(), obj.dtype, obj.device, obj.requires_grad
        return (*layout, torch._C._dispatch_keys(obj).raw_repr())  # type: ignore[attr-defined]


def wrap_dispatched(tx: TraceContext, obj: torch.Tensor, source: Source) -> Value:
    """The Value of an outside tensor of such a subclass. Raises Unsupported in the `__torch_dispatch__` of another that Python runs."""
    cls = type(obj)
    if is_below_autograd():
        raise Unsupported("tensor-kind", f"{source.text} in a function that runs below autograd")
    tx.guards.add(source, "type_is", cls)
    check = _HasMetadata(_metadata(obj))
    tx.guards.add(source, "call", check, f"{source.text} has sizes {tuple(obj.shape)} and the other metadata")
    _rely_on_class(tx, cls)
    found = DispatchedTensor(cls, _stand_in_of(obj), obj, source)
    tx.dispatched.append(found)
    return found


def _rely_on_class(tx: TraceContext, cls: type) -> None:
    for name in ("__torch_dispatch__", "__torch_function__"):
        lookup(tx, cls, name)
    tx.guards.add(ConstSource(None, "dispatch keys"), "call", _above_autograd, "autograd sees the operators")


def _above_autograd(_: Any) -> bool:
    return not is_below_autograd()


# ---- tensors that the program makes


def new_dispatched(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.Tensor._make_wrapper_subclass(cls, size, strides=, dtype=, ...)`"""
    if len(args) != 2 or not kwargs.keys() <= _OPTIONS:
        raise Unsupported("tensor-subclass", f"_make_wrapper_subclass with {', '.join(kwargs) or 'these arguments'}")
    cls = args[0].constant()
    why_not = why_not_dispatched(cls)
    if why_not is None and id(cls) in tx.mutations.made:
        why_not = "is a class that the program makes"
    if why_not is None and torch.is_inference_mode_enabled() != tx.began_in_inference_mode:
        why_not = "is used where inference mode is not as at the start"
    if why_not is None and is_below_autograd():
        why_not = "is used below autograd"
    if why_not is not None:
        raise Unsupported("tensor-subclass", f"{cls.__qualname__} {why_not}")
    _rely_on_class(tx, cls)
    size = plain_argument(tx, args[1])
    options = {name: plain_argument(tx, value) for name, value in kwargs.items()}
    made = DispatchedTensor(cls, torch.Tensor._make_wrapper_subclass(StandIn, size, **options))  # type: ignore[attr-defined]
    made.made_by, made.made_at = (args[1], kwargs), tx.frames[0].at
    tx.dispatched.append(made)
    return made


# ---- what PyTorch has for writers of such classes


def correct_aliasing(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.utils._python_dispatch.return_and_correct_aliasing(func, args, kwargs, out)`

    In place, the operator gives the tensor that it writes to. The results of a view share the memory of what they are views of: they have
    none, but PyTorch sees that they share it.
    """
    function, given, named, out = _aliasing_arguments(tx, args, kwargs)
    if torch.Tag.inplace_view in function.tags:
        raise Unsupported("tensor-subclass", f"{function}, which changes the metadata of a tensor")
    returns = function._schema.returns
    results = [out] if len(returns) == 1 else out.unpack(tx)
    parameters = function._schema.arguments
    written: list[Value] = []
    for returned, result in zip(returns, results, strict=True):
        alias = returned.alias_info
        if alias is None:
            continue
        # Lists of views are of the argument that has a wildcard.
        shared = alias.before_set or {"*"}
        own = [
            k
            for k, p in enumerate(parameters)
            if p.alias_info and shared & (p.alias_info.before_set | p.alias_info.after_set)
        ]
        if len(own) != 1:
            raise Unsupported("tensor-subclass", f"{function}, whose results may be several of its arguments")
        owner = given[own[0]] if own[0] < len(given) else named[parameters[own[0]].name]
        if alias.is_write:
            written.append(owner)
        else:
            _share_memory(tx, result, owner)
    if not written:
        return out
    if len(written) != len(results):
        raise Unsupported("tensor-subclass", f"{function}, which writes to some of its results")
    return written[0] if len(returns) == 1 else TupleValue(written)


def _aliasing_arguments(
    tx: TraceContext, args: list[Value], kwargs: dict[str, Value]
) -> tuple[torch._ops.OpOverload, list[Value], dict[str, Value], Value]:
    names = ("func", "args", "kwargs", "out")
    given = dict(zip(names, args, strict=False)) | kwargs
    function = given["func"].constant()
    mapping = given["kwargs"].as_dict(tx)
    if not isinstance(function, torch._ops.OpOverload) or mapping is None:
        raise Unsupported("tensor-subclass", "return_and_correct_aliasing of these arguments")
    named = {key.constant(): value for key, value in mapping.items(tx)}
    return function, given["args"].unpack(tx), named, given["out"]


def _share_memory(tx: TraceContext, result: Value, owner: Value) -> None:
    if isinstance(result, Sequence):
        for item in result.unpack(tx):
            _share_memory(tx, item, owner)
        return
    if not isinstance(result, DispatchedTensor) or result.source is not None or result.cls is not owner.python_type():
        raise Unsupported("tensor-subclass", f"a view of {owner.describe()} that is no new tensor of its class")
    result.memory_of = owner
