"""`__torch_function__` of objects, tensors of subclasses among them: torch's functions call it instead of computing.

    torch.add(tagged, 2)     =>     Tagged.__torch_function__(torch.add, (Tagged,), (tagged, 2))

A function written in Python asks for such arguments itself, and is traced (`has_torch_function`, `handle_torch_function`). One written in C
asks where it reads its arguments.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import Constant, boolean, settled
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.graph_functions import goes_into_graph
from treadle_tracer.values.mappings import dict_of
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import Sequence, TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_NAME = "__torch_function__"
DEFAULT_OVERRIDE = torch.Tensor.__torch_function__.__func__
"""The function of torch.Tensor's own class method, which its subclasses inherit."""


@contextlib.contextmanager
def without_overrides(tx: TraceContext) -> Iterator[None]:
    """Inside, no `__torch_function__` is asked (`torch._C.DisableTorchFunctionSubclass`)."""
    tx.overrides_off += 1
    try:
        yield
    finally:
        tx.overrides_off -= 1


def is_overriding_class(tx: TraceContext, cls: type) -> bool:
    """Whether PyTorch asks the `__torch_function__` of a class. That of parameters stands for none (torch.nn.Parameter)."""
    found = lookup(tx, cls, _NAME)
    return found is not MISSING and found is not torch._C._disabled_torch_function_impl


def overriding(tx: TraceContext, values: Iterable[Value]) -> list[Value]:
    """The values that override torch's functions, one of each class, as torch asks them. Empty if there are only tensors.

    Plain tensors are among them. They give way to others (torch/_tensor.py, `Tensor.__torch_function__`).
    """
    if tx.overrides_off:
        return []
    values = [*map(settled, values)]
    if not any(isinstance(value, ObjectValue) for value in values):
        return []
    found = in_order_of_asking(tx, values)
    return found if any(isinstance(value, ObjectValue) for value in found) else []


def in_order_of_asking(tx: TraceContext, values: Iterable[Value]) -> list[Value]:
    """Those whose classes have a `__torch_function__`, one of each class: from left to right, subclasses first."""
    found: list[Value] = []
    for value in map(settled, values):
        if not isinstance(value, ObjectValue) and value.python_type() is not torch.Tensor:
            continue
        if not any(value.python_type() is other.python_type() for other in found):
            if is_overriding_class(tx, value.python_type()):
                insert_to_be_asked(found, value)
    return found


def insert_to_be_asked(found: list[Any], value: Value) -> None:
    """Put the first value of a class in front of those of its base classes, else behind all."""
    cls = value.python_type()
    found.insert(next((i for i, other in enumerate(found) if issubclass(cls, other.python_type())), len(found)), value)


def with_items(args: Iterable[Value]) -> Iterable[Value]:
    """What a function in C looks at: its arguments, and the items of those that are sequences."""
    for arg in map(settled, args):
        if isinstance(arg, Sequence):
            yield from arg.items
        else:
            yield arg


def may_be_overridden(function: Any) -> bool:
    """Whether arguments of a function may override it."""
    return id(function) in _overridable() or goes_into_graph(function)


def call_override(tx: TraceContext, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a function of torch gives for arguments that override it; None where there are none."""
    found = overriding(tx, with_items([*args, *kwargs.values()]))
    if not found:
        return None
    if isinstance(function, types.FunctionType):
        return tx.inline(FunctionValue.outside(tx, function, ConstSource(function)), args, kwargs)
    if id(function) not in _overridable():
        return None
    return dispatch_from_c(tx, function, found, args, kwargs)


def has_override(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`has_torch_function_unary(arg)`, `has_torch_function_variadic(*args)`"""
    return boolean(tx.modes.are_active or bool(overriding(tx, args)))


def has_override_among(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`has_torch_function(relevant)`"""
    if tx.modes.are_active:
        return boolean(True)
    return boolean(bool(overriding(tx, [value for relevant in args for value in relevant.unpack(tx)])))


def handle(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.overrides.handle_torch_function(function, relevant, *args, **kwargs)`"""
    if tx.modes.are_active:
        return tx.handle_by_modes(args, kwargs)
    function, relevant, *given = args
    return dispatch(tx, function, overriding(tx, relevant.unpack(tx)), given, dict_of(kwargs))


def dispatch_from_c(
    tx: TraceContext, function: Any, found: Iterable[Value], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """`dispatch` as a function in C does it: plain tensors are not asked, and without named arguments nothing stands for them."""
    asked = [value for value in found if isinstance(value, ObjectValue)]
    return dispatch(tx, tx.wrap_known(function), asked, args, dict_of(kwargs) if kwargs else None)


def dispatch(tx: TraceContext, function: Value, found: list[Value], args: list[Value], kwargs: Value | None) -> Value:
    """What the values `found` give for `function(*args, **kwargs)`, asked in this order."""
    kinds = TupleValue([tx.wrap_known(value.python_type()) for value in found])
    given = [function, kinds, TupleValue(args), *(() if kwargs is None else (kwargs,))]
    result = first_answer(tx, _NAME, _with_class_method(tx, found), given)
    if result is None:
        raise Unsupported("graph-argument", f"{found[0].describe()}, whose {_NAME} refuses the function")
    return result


def _with_class_method(tx: TraceContext, found: Iterable[Value]) -> Iterator[ObjectValue]:
    for value in found:
        if isinstance(value, ObjectValue):
            if not isinstance(lookup(tx, value.cls, _NAME), classmethod):
                raise Unsupported("graph-argument", f"{value.describe()}, whose {_NAME} is no class method")
            yield value


def first_answer(tx: TraceContext, name: str, asked: Iterable[ObjectValue], given: list[Value]) -> Value | None:
    """What the class method of this name gives of the first class that does not return NotImplemented; None where all do."""
    for value in asked:
        tx.dispatches += 1
        try:
            result = tx.wrap_known(value.cls).get_attr(tx, name).call(tx, given, {})
        finally:
            tx.dispatches -= 1
        if not (isinstance(result, Constant) and result.obj is NotImplemented):
            return result
    return None


@functools.cache
def _overridable() -> frozenset[int]:
    """Identities of torch's functions that can be overridden. They live as long as torch."""
    functions = torch.overrides.get_overridable_functions()
    return frozenset(id(function) for members in functions.values() for function in members)
