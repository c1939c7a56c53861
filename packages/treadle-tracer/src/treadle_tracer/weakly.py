"""What entries refer to weakly, so that a compiled function keeps nothing of the program alive: classes, functions, modules, objects.

Guards of something that is gone never hold again, and the address of what is gone may be another object's: whoever compares goes through a
live reference.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import Any

import torch

_NEVER_UNLOADED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy"}
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE: made at run time; Py_TPFLAGS_IMMUTABLETYPE
_HOLDERS = (property, staticmethod, classmethod, types.MemberDescriptorType, types.GetSetDescriptorType)
Reference = weakref.ref[Any]


def class_may_change(cls: type) -> bool:
    """Whether attributes of the class can be set."""
    return cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE


def is_referred_to_weakly(obj: Any) -> bool:
    """Whether an object can be and is referred to weakly.

    Tensors are not: `torch.utils.swap_tensors` refuses to work on one with weak references. Modules, classes and functions of the standard
    library and of PyTorch are there to the end anyway.
    """
    kind = type(obj)
    if kind.__weakrefoffset__ == 0 or isinstance(obj, (torch.Tensor, types.BuiltinFunctionType)):
        return False
    if isinstance(obj, type):
        return class_may_change(obj) and not _lasts(obj)
    if kind is types.ModuleType:
        return sys.modules.get(obj.__name__) is not obj
    return kind is not types.FunctionType or not _lasts(obj)


def _lasts(obj: Any) -> bool:
    """Whether a class or function of a library that is never unloaded stands in its module."""
    module, name = obj.__module__, obj.__qualname__
    if not isinstance(module, str) or module.partition(".")[0] not in _NEVER_UNLOADED or "<locals>" in name:
        return False
    return name.partition(".")[0] in vars(sys.modules.get(module, types))


def reference_to(obj: Any) -> Any:
    """A weak reference to an object, or the object itself where that is not referred to weakly."""
    return weakref.ref(obj) if is_referred_to_weakly(obj) else obj


def referent(reference: Any) -> Any:
    """What `reference_to` has been given; None if it is gone."""
    return reference() if type(reference) is weakref.ref else reference


def parts_of(descriptor: Any) -> tuple[Any, ...] | None:
    """What tells a property, static or class method, or slot from any other: its type, then (member, reference to what that holds).

    None for every other object. These cannot be referred to weakly, and hold functions and classes.
    """
    kind = type(descriptor)
    if kind not in _HOLDERS or not class_may_change(getattr(descriptor, "__objclass__", torch.nn.Module)):
        return None
    names = [name for name, member in vars(kind).items() if type(member) is types.MemberDescriptorType]
    held = [(name, getattr(descriptor, name)) for name in names]
    return kind, *((name, reference_to(value)) for name, value in held)


def named_slot(descriptor: Any) -> tuple[Reference, str] | None:
    """The class and the name by which a slot of a class made at run time is found; None for every other descriptor."""
    cls = getattr(descriptor, "__objclass__", None)
    if type(descriptor) not in _HOLDERS or not isinstance(cls, type) or not class_may_change(cls):
        return None
    found = cls.__dict__.get(descriptor.__name__) is descriptor
    return (weakref.ref(cls), descriptor.__name__) if found else None
