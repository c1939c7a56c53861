"""Items, methods and operators of tensors: a node of the graph, or what a table says is done instead."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.values import assumptions, differentiation, gradients, tensor_numbers
from treadle_tracer.values.arrays import array_of
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.index_sequences import with_stacked_integers
from treadle_tracer.values.originals import is_original, original
from treadle_tracer.values.tensor import TensorValue, shape_of
from treadle_tracer.values.tensor_construction import copy_of_tensor
from treadle_tracer.values.tensor_hooks import register_hook
from treadle_tracer.values.tensor_queries import answer_of_object, storage_offset
from treadle_tracer.values.tensor_subclasses import OverridingTensor, as_subclass, call_override_of_method
from treadle_tracer.values.tensors_of_numbers import new_tensor
from treadle_tracer.values.torch_calls import run_in_graph
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def get_item(tx: TraceContext, owner: TensorValue, key: Value) -> Value:
    """`owner[key]`"""
    overridden = _overridden_by_argument(tx, owner, "__getitem__", [key], {})
    if overridden is not None:
        return overridden
    if tx.modes.ask:
        return _method_by_modes(tx, "__getitem__", [owner, key], {})
    key = with_stacked_integers(tx, tensor_numbers.with_known_scalars(tx, key))
    found = tensor_numbers.get_item(tx, owner, key)
    return found if found is not None else run_in_graph(tx, "call_function", operator.getitem, [owner, key], {})


def set_item(tx: TraceContext, owner: TensorValue, key: Value, value: Value) -> None:
    """`owner[key] = value`"""
    if _overridden_by_argument(tx, owner, "__setitem__", [key, value], {}) is not None:
        return
    if tx.modes.ask:
        _method_by_modes(tx, "__setitem__", [owner, key, value], {})
        return
    key = with_stacked_integers(tx, tensor_numbers.with_known_scalars(tx, key))
    if not tensor_numbers.set_item(tx, owner, key, value):
        run_in_graph(tx, "call_function", operator.setitem, [owner, key, value], {})


def _method_by_modes(tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of the first argument where a mode may be asked about it."""
    if lookup(tx, torch.Tensor, name) is MISSING:
        raise Unsupported("function-mode", f"{name} of {args[0].describe()}")

    def plain(given: list[Value], named: dict[str, Value]) -> Value:
        owner, *rest = given
        return tensor_method(tx, owner, name, rest, named)  # type: ignore[arg-type]

    return tx.call_by_modes(getattr(torch.Tensor, name), plain, args, kwargs)


def _overridden_by_argument(
    tx: TraceContext, owner: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """What a method gives for an argument that overrides it (`x[mask]`, `x + y` with a tensor of a subclass); None where there is none."""
    if not any(isinstance(arg, OverridingTensor) for arg in (*args, *kwargs.values())):
        return None
    return call_override_of_method(tx, owner, name, args, kwargs)


def tensor_method(
    tx: TraceContext, owner: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """PyTorch's own method of this name, whatever the class has now."""
    if tx.modes.ask:
        return _method_by_modes(tx, name, [owner, *args], kwargs)
    overridden = _overridden_by_argument(tx, owner, name, args, kwargs)
    if overridden is not None:
        return overridden
    special = _TENSOR_METHODS.get(name)
    if special is not None:
        result = special(tx, owner, args, kwargs)
        if result is not None:
            return result
    answer = None if args or kwargs else answer_of_object(tx, owner, name)
    if answer is not None:
        return Constant(answer)
    raw = lookup(tx, torch.Tensor, name)
    if raw is MISSING:
        return owner.get_attr(tx, name).call(tx, args, kwargs)
    if not is_original(torch.Tensor, name, raw):  # by its name the graph would call what has replaced it
        return run_in_graph(tx, "call_function", original(name), [owner, *args], kwargs)
    return run_in_graph(tx, "call_method", name, [owner, *args], kwargs)


def _unsupported(code: str) -> Callable[..., Value]:
    def run(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported(code, owner.describe())

    return run


def _size(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if not args and not kwargs:
        return shape_of(tx, owner)
    dim = args[0] if args else kwargs.get("dim", NONE)
    if isinstance(dim, Constant) and isinstance(dim.obj, int) and -owner.fake.dim() <= dim.obj < owner.fake.dim():
        return shape_of(tx, owner).items[dim.obj]
    return None


def _new_tensor(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    copy = copy_of_tensor(tx, "tensor.new_tensor", args, kwargs, like=owner)
    return new_tensor(tx, owner, args, kwargs) if copy is None else copy


def _length(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return shape_of(tx, owner).items[0] if owner.fake.dim() else Constant(owner.length(tx))


def _storage_offset(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    offset = None if args or kwargs else storage_offset(tx, owner)
    return None if offset is None else tx.from_constant(offset)


def _type_method(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if args or kwargs:
        return None
    return Constant(owner.fake.type() if owner.obj is None else owner.obj.type())


def _requires_grad_(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    gradients.set_requires_grad(tx, owner, args[0] if args else kwargs.get("requires_grad", Constant(True)))
    return owner


def _as_function(function: Callable[..., Any]) -> Callable[..., Value]:
    """The method is the function, which has a rule."""
    return lambda tx, owner, args, kwargs: tx.wrap_known(function).call(tx, [owner, *args], kwargs)


def _to_numpy(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args or kwargs:
        raise Unsupported("tensor-method", owner.describe())
    return array_of(owner)


def _set_item(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner.set_item(tx, args[0], args[1])
    return NONE


def _squeeze(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> None:
    assumptions.squeezed(tx, owner, [*args, *kwargs.values()])


_TENSOR_METHODS: dict[str, Callable[..., Value | None]] = by_name(
    ("requires_grad_", _requires_grad_),
    ("squeeze squeeze_", _squeeze),
    ("item", lambda tx, owner, args, kwargs: tensor_numbers.item(tx, owner)),
    ("tolist", lambda tx, owner, args, kwargs: tensor_numbers.to_list(tx, owner)),
    ("__int__", lambda tx, owner, args, kwargs: tensor_numbers.to_number(tx, owner, int)),
    ("__float__", lambda tx, owner, args, kwargs: tensor_numbers.to_number(tx, owner, float)),
    ("__bool__ is_nonzero", lambda tx, owner, args, kwargs: tensor_numbers.to_bool(tx, owner)),
    ("__complex__ __index__", _unsupported("data-dependent")),
    ("__contains__", _unsupported("branch-on-tensor")),
    (
        "data_ptr storage untyped_storage share_memory_ __reduce_ex__ __deepcopy__ "
        "__dlpack__ retain_grad set_ __repr__ __str__ __format__ apply_ map_ is_shared pin_memory __torch_function__",
        _unsupported("tensor-method"),
    ),
    ("register_hook", register_hook),
    ("cov", _as_function(torch.cov)),
    ("corrcoef", _as_function(torch.corrcoef)),
    ("masked_select", _as_function(torch.masked_select)),
    ("numpy __array__", _to_numpy),
    ("backward", differentiation.tensor_backward),
    ("size", _size),
    ("new_tensor", _new_tensor),
    ("__len__", _length),
    ("storage_offset", _storage_offset),
    ("type", _type_method),
    ("as_subclass", lambda tx, owner, args, kwargs: as_subclass(tx, owner, *args)),
    ("__getitem__", lambda tx, owner, args, kwargs: owner.get_item(tx, args[0])),
    ("__setitem__", _set_item),
    ("__iter__", lambda tx, owner, args, kwargs: owner.iterate(tx)),
    ("__hash__", _unsupported("hash")),
    ("get_device", lambda tx, owner, args, kwargs: Constant(owner.fake.get_device())),
    ("is_floating_point", lambda tx, owner, args, kwargs: Constant(owner.fake.is_floating_point())),
    ("is_complex", lambda tx, owner, args, kwargs: Constant(owner.fake.is_complex())),
    ("dim", lambda tx, owner, args, kwargs: Constant(owner.fake.dim())),
)
"""What is done instead of a node, by method. None: the call is a node after all."""
