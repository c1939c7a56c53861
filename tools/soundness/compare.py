"""Canonical descriptions of values: equal if and only if a program could not tell two worlds apart."""

from __future__ import annotations

import collections
import contextvars
import enum
import types
import weakref
from typing import Any

import numpy as np
import torch

SKIPPED = frozenset({"f", "compiled"})
_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...), torch.dtype, torch.device, torch.Size, range)
_ITERATORS = (type(iter([])), type(iter(())), type(iter(range(0))), map, enumerate, zip)


class Describer:
    """Describes values, with objects numbered in the order in which they are met, so that aliasing is part of the description."""

    def __init__(self, with_values: bool = True) -> None:
        """with_values: describe the elements of tensors, too."""
        self.with_values = with_values
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.alive: list[Any] = []

    def describe(self, value: Any) -> Any:
        """A nested tuple of plain values."""
        if type(value) in _PLAIN:
            return type(value).__name__, repr(value)
        number = self.numbers.get(id(value))
        if number is not None:
            return "again", number
        self.numbers[id(value)] = len(self.numbers)
        self.alive.append(value)
        return (type(value).__name__, *self._parts(value))

    def _parts(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple, collections.deque)):
            return tuple(map(self.describe, value)), self._attributes(value)
        if isinstance(value, dict) and all(callable(v) for v in value.values()):
            return tuple(map(self.describe, value.values()))  # hooks, whose keys count through the process
        if isinstance(value, dict):
            return tuple((self.describe(k), self.describe(v)) for k, v in value.items()), self._attributes(value)
        if isinstance(value, (set, frozenset)):
            return (tuple(sorted(map(self._member, value))),)
        if isinstance(value, weakref.ReferenceType):
            return (self.describe(value()),)
        if isinstance(value, weakref.WeakSet):
            return (tuple(sorted(map(self._member, value))),)
        if isinstance(value, np.ndarray):
            return value.shape, value.strides, str(value.dtype), repr(value.tolist())
        if isinstance(value, contextvars.ContextVar):
            return (self.describe(value.get()),)
        if type(value) in _ITERATORS:
            return (self.describe(value.__reduce__()),)
        if isinstance(value, enum.Enum):
            return value.name, self.describe(value._value_)
        if isinstance(value, types.FunctionType):
            return value.__qualname__, self.describe(value.__defaults__), self.describe(value.__kwdefaults__)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType, property, staticmethod, classmethod)):
            return (getattr(value, "__name__", ""),)
        return (self._attributes(value),)

    def _member(self, value: Any) -> tuple[str, str]:
        """A member of a set, whose order is nobody's: objects by their number, if they have one already."""
        return type(value).__name__, repr(value if type(value) in _PLAIN else self.numbers.get(id(value)))

    def _class(self, cls: type) -> tuple[Any, ...]:
        if cls.__module__ != "world":
            return (cls.__qualname__,)
        own = [(k, self.describe(v)) for k, v in vars(cls).items() if not k.startswith("__") or k == "__slots__"]
        return cls.__qualname__, tuple(own), tuple(base.__name__ for base in cls.__mro__)

    def _attributes(self, value: Any) -> Any:
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return ()
        # torch.compile marks tensors and modules with attributes of its own.
        return tuple((str(k), self.describe(v)) for k, v in attributes.items() if not str(k).startswith("_dynamo"))

    def _tensor(self, t: torch.Tensor) -> tuple[Any, ...]:
        if t.layout is not torch.strided:
            return str(t.layout), tuple(t.shape), str(t.dtype), t.requires_grad
        storage = self.storages.setdefault(t.untyped_storage()._cdata, len(self.storages))
        try:
            leaf: Any = t.is_leaf
        except RuntimeError as error:  # a view whose history autograd refuses
            leaf = str(error)
        grad = None if leaf is not True or t.grad is None else self.describe(t.grad)
        return (
            tuple(t.shape), t.stride() if t.numel() else (), t.storage_offset(), str(t.dtype), storage, t.requires_grad, leaf, grad,
            _values(t) if self.with_values else (), self._attributes(t),
        )  # fmt: skip


def _values(t: torch.Tensor) -> tuple[float, ...]:
    """Values rounded to five digits: kernels may add in another order."""
    with torch.no_grad():  # a copy, since a tensor made in inference mode whose `.data` has been replaced has no views
        flat = t.clone().reshape(-1).tolist()
    return tuple(float(f"{float(v):.4e}") + 0.0 for v in flat)


def describe_world(namespace: dict[str, Any]) -> Any:
    """The state of a whole world, each name by itself, with aliasing across names."""
    describer = Describer()
    # A name like `__resume_at_6` is torch.compile's.
    names = [name for name in namespace if name not in SKIPPED and not name.startswith("__")]
    return tuple((name, describer.describe(namespace[name])) for name in names)


def first_difference(a: Any, b: Any, path: str = "") -> str:
    """Where two descriptions differ, for messages."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) != len(b):
            return f"{path}: {len(a)} items, {len(b)} items: {str(a)[:300]} | {str(b)[:300]}"
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y:
                label = x[0] if isinstance(x, tuple) and x and isinstance(x[0], str) else k
                return first_difference(x, y, f"{path}.{label}")
    return f"{path}: {str(a)[:300]} | {str(b)[:300]}"
