"""Calls of torch that modes see (`function_modes`), and what PyTorch hands to a mode, which is asked of PyTorch (`_Examples`)."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors

from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import NONE, Constant, LazyValue, is_none
from treadle_tracer.values.constants import is_constant_object
from treadle_tracer.values.function_overrides import in_order_of_asking
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.mappings import DictValue, dict_of
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor_subclasses import Getter
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def call_by_modes(
    tx: TraceContext, function: Any, plain: Callable[..., Value], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """`function(*args, **kwargs)`, a call of torch that modes may see. plain(args, kwargs): the call as it is, seen by nobody."""
    modes = tx.modes
    if not modes.ask:
        if function in _device_constructors() and is_none(kwargs.get("device", NONE)):
            device = modes.default_device(tx)
            assert device is not None
            kwargs = {**kwargs, "device": device}
        elif isinstance(function, types.FunctionType) and not _is_cpu(modes.default_device(tx)):
            # One that asks modes itself runs without them, and what it makes is on the CPU.
            asked = _Examples(tx).ask(function, args, kwargs)
            if asked is None or asked[0] is not function:
                return _inlined(tx, function, args, kwargs)
        with modes.settle():
            return plain(args, kwargs)
    if isinstance(function, types.FunctionType) and not function.__qualname__.startswith("Tensor."):
        return _inlined(tx, function, args, kwargs)
    examples = _Examples(tx)
    asked = examples.ask(function, args, kwargs)
    if asked is None:
        with modes.settle():
            return plain(args, kwargs)
    function, kinds, given, named = asked
    wrapped = examples.function(function)
    named_values = None if named is None else examples.back(named)
    return ask_modes(
        tx, wrapped, TupleValue([tx.wrap_known(kind) for kind in kinds]), examples.back(given), named_values
    )


def _inlined(tx: TraceContext, function: types.FunctionType, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return tx.inline(FunctionValue.outside(tx, function, ConstSource(function)), args, kwargs)


def _is_cpu(device: Value | None) -> bool:
    return device is not None and device.is_constant() and device.constant().type == "cpu"


def ask_modes(tx: TraceContext, function: Value, kinds: Value, args: Value, kwargs: Value | None) -> Value:
    """What the innermost mode gives for `function(*args, **kwargs)`."""
    stack = tx.modes.stack
    mode = stack.pop()
    given = [function, kinds, args, *(() if kwargs is None else (kwargs,))]
    tx.dispatches += 1
    try:
        result = mode.get_attr(tx, "__torch_function__").call(tx, given, {})
    finally:
        tx.dispatches -= 1
        stack.append(mode)
    if isinstance(result, Constant) and result.obj is NotImplemented:
        raise Unsupported("function-mode", f"{mode.describe()}, which refuses {function.describe()}")
    return result


def handle_by_modes(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`torch.overrides.handle_torch_function(function, relevant, *args, **kwargs)` where modes are active."""
    function, relevant, *given = args
    kinds = [value.python_type() for value in in_order_of_asking(tx, relevant.unpack(tx))]
    return ask_modes(
        tx, function, TupleValue([tx.wrap_known(kind) for kind in kinds]), TupleValue(given), dict_of(kwargs)
    )


class OutsideDevice(Value):
    """A default device that is set around the traced function, as a mode on the stack."""

    __slots__ = ("device",)

    def __init__(self, device: torch.device):
        self.source = None
        self.device = device

    def python_type(self) -> type:
        return DeviceContext

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name != "device":
            raise Unsupported("function-mode", f"{name} of the default device")
        return Constant(self.device)

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", "the default device")


# ---- what PyTorch asks


class _Asked(Exception):
    """A mode has been asked for this call."""


class _Probe(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Asked(func, types, args, kwargs)


class _Examples:
    """Stand-ins for the arguments of a call, by which what PyTorch hands on is recognised."""

    def __init__(self, tx: TraceContext) -> None:
        self._tx = tx
        self._values: dict[int, Value] = {}
        self._kept: list[Any] = []

    def ask(self, call: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value]) -> Any:
        """(function, types, arguments, named arguments) that PyTorch hands to a mode for this call; None if it asks nobody."""
        given = [self._example(arg) for arg in args]
        named = {name: self._example(arg) for name, arg in kwargs.items()}
        try:
            with _Probe():
                # PyTorch hands on an empty dict, too.
                _ = call(*given, **named) if named or self._tx.frames[-1].spreads_keywords() else call(*given)
        except _Asked as asked:
            return asked.args
        except Exception as error:
            raise Unsupported("torch-call-raises", f"{getattr(call, '__name__', call)}: {error}") from error
        return None

    def _example(self, value: Value) -> Any:
        value = value.force(self._tx) if isinstance(value, LazyValue) else value
        made = self._made(value)
        self._values[id(made)] = value
        self._kept.append(made)
        return made

    def _made(self, value: Value) -> Any:
        cls = value.python_type()
        if is_subtype(cls, torch.Tensor):
            with torch._C._DisableTorchDispatch():  # no fake tensor, of which there is no subclass
                plain = torch.empty(0)
            return plain if cls is torch.Tensor else torch.Tensor._make_subclass(cls, plain)
        if isinstance(value, (ListValue, TupleValue)):
            items = [self._example(item) for item in value.unpack(self._tx)]
            return items if isinstance(value, ListValue) else tuple(items)
        if value.is_constant():
            return value.constant()
        if cls is int or cls is float:
            return cls(1e6 + len(self._kept))  # an object of its own
        raise Unsupported("function-mode", f"a call with {value.describe()}")

    def back(self, given: Any) -> Value:
        """What PyTorch has handed on, as values."""
        known = self._values.get(id(given))
        if known is not None and not isinstance(known, Constant):
            return known
        if type(given) in (tuple, list):
            items = [self.back(item) for item in given]
            return ListValue(items) if type(given) is list else TupleValue(items)
        if type(given) is dict:
            made = DictValue()
            for name, item in given.items():
                made.set_item(self._tx, Constant(name), self.back(item))
            return made
        if is_constant_object(given):
            return self._tx.from_constant(given)
        return self._tx.wrap_known(given)

    def function(self, function: Any) -> Value:
        """The function that is asked about; a read of an attribute comes as `descriptor.__get__`."""
        if type(function) is types.MethodWrapperType:
            if function.__name__ != "__get__":
                raise Unsupported("function-mode", "an assignment to an attribute of a tensor")
            return Getter(function.__self__)
        return self._tx.wrap_known(function)
