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

from .by_identity import is_one_of
from .class_facts import (
    flags_of,
    is_class,
    is_weakly_referable,
    module_of,
    namespace_of,
    stands_in_its_module,
)

_NEVER_UNLOADED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy"}
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE: made at run time; Py_TPFLAGS_IMMUTABLETYPE
_HOLDERS = (property, staticmethod, classmethod, types.MemberDescriptorType, types.GetSetDescriptorType)
Reference = weakref.ref[Any]


def class_may_change(cls: type) -> bool:
    """Whether attributes of the class can be set."""
    return flags_of(cls) & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE


def is_referred_to_weakly(obj: Any) -> bool:
    """Whether an object can be and is referred to weakly.

    Tensors are not: `torch.utils.swap_tensors` refuses to work on one with weak references. Modules, classes and functions of the standard
    library and of PyTorch are there to the end anyway.
    """
    kind = type(obj)
    if not is_weakly_referable(kind) or issubclass(kind, torch.Tensor) or kind is types.BuiltinFunctionType:
        return False
    if issubclass(kind, type):
        return class_may_change(obj) and not _class_lasts(obj)
    if kind is types.ModuleType:
        return sys.modules.get(obj.__name__) is not obj
    return kind is not types.FunctionType or not _function_lasts(obj)


def _class_lasts(cls: type) -> bool:
    """Whether a class of a library that is never unloaded stands in its module."""
    module = module_of(cls)
    return isinstance(module, str) and module.partition(".")[0] in _NEVER_UNLOADED and stands_in_its_module(cls)


def _function_lasts(obj: Any) -> bool:
    """As `_class_lasts`, of a function or the class that it is a method of."""
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
    if not is_one_of(kind, _HOLDERS) or not class_may_change(getattr(descriptor, "__objclass__", torch.nn.Module)):
        return None
    names = [name for name, member in vars(kind).items() if type(member) is types.MemberDescriptorType]
    held = [(name, getattr(descriptor, name)) for name in names]
    return kind, *((name, reference_to(value)) for name, value in held)


def named_slot(descriptor: Any) -> tuple[Reference, str] | None:
    """The class and the name by which a slot of a class made at run time is found; None for every other descriptor."""
    cls = getattr(descriptor, "__objclass__", None)
    if not is_one_of(type(descriptor), _HOLDERS) or not is_class(cls) or not class_may_change(cls):
        return None
    found = namespace_of(cls).get(descriptor.__name__) is descriptor
    return (weakref.ref(cls), descriptor.__name__) if found else None
