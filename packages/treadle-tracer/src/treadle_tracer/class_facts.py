"""What a class or object is, read past all that a metaclass or class of the program says about it.

`cls.__mro__`, `issubclass(x, cls)` and `isinstance(obj, ...)` may run methods of a metaclass, or a property called `__class__`. These run
none, as CPython itself does where it asks.
"""

from __future__ import annotations

import collections
import functools
import sys
import threading
from collections.abc import Iterable
from types import FunctionType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any

_MRO, _DICT, _FLAGS, _NAME, _QUALNAME = (
    type.__dict__[name].__get__ for name in ("__mro__", "__dict__", "__flags__", "__name__", "__qualname__")
)


def mro_of(cls: type) -> tuple[type, ...]:
    """`cls.__mro__`; a static type that nobody has used yet has none."""
    return _MRO(cls) or (cls, object)


_NO_NAMES: MappingProxyType[str, Any] = MappingProxyType({})


def namespace_of(cls: type) -> Any:
    """`cls.__dict__`; a static type that nobody has used yet has none."""
    return _DICT(cls) or _NO_NAMES


def flags_of(cls: type) -> int:
    """`cls.__flags__`"""
    return _FLAGS(cls)


def name_of(cls: type) -> str:
    """`cls.__name__`"""
    return _NAME(cls)


def qualname_of(cls: type) -> str:
    """`cls.__qualname__`"""
    return _QUALNAME(cls)


def has_instance_dict(cls: type) -> bool:
    """Whether instances have a `__dict__`."""
    return _DICTOFFSET(cls) != 0


def is_weakly_referable(cls: type) -> bool:
    """Whether instances can be referred to weakly."""
    return _WEAKREF_OFFSET(cls) != 0


def module_of(cls: type) -> Any:
    """What the class statement says of the module of a class, which may be anything; "builtins" for classes made in C."""
    return namespace_of(cls).get("__module__") or _NAME_OF_MODULE(cls)


_WEAKREF_OFFSET = type.__dict__["__weakrefoffset__"].__get__
_DICTOFFSET = type.__dict__["__dictoffset__"].__get__
_NAME_OF_MODULE = type.__dict__["__module__"].__get__


def is_subtype(cls: type, base: Any) -> bool:
    """Whether a class has `base` among its bases: PyType_IsSubtype, which exceptions, operators and `super` ask."""
    return _HAS_SUBCLASS(base, cls)


_HAS_SUBCLASS = type.__subclasscheck__  # the one of `type`, which asks PyType_IsSubtype of two classes


def is_class(obj: Any) -> bool:
    """Whether the object is a class."""
    return is_subtype(type(obj), type)


def own_dict(obj: Any) -> dict[str, Any] | None:
    """`obj.__dict__` past everything that a class statement may do about it; None where it has none.

    A partial gets one when it is asked for, and then `functools.partial` does not take it apart any more: None until then.
    """
    for cls in mro_of(type(obj)):
        if cls is functools.partial:
            return partial_dict(obj)
        found: Any = namespace_of(cls).get("__dict__")
        if type(found) is GetSetDescriptorType or type(found) is MemberDescriptorType:
            return thread_dict(obj) if is_thread_local(type(obj)) else found.__get__(obj)
    try:
        return getattr(obj, "__dict__", None)
    except ReferenceError:  # a weak proxy of what is gone
        return None


def is_thread_local(cls: type) -> bool:
    """Whether instances keep attributes in a dict of each thread. Those of a subclass have one of their own too, which nothing uses."""
    return is_subtype(cls, threading.local)


def thread_dict(obj: threading.local) -> dict[str, Any]:
    """The attributes of a thread local in this thread, which may run `__init__`."""
    found: dict[str, Any] = threading.local.__getattribute__(obj, "__dict__")
    return found


def partial_dict(obj: functools.partial[Any]) -> dict[str, Any] | None:
    """The instance dict of a partial, None if it has none yet: what `__reduce__` tells (CPython, Modules/_functoolsmodule.c)."""
    return functools.partial.__reduce__(obj)[2][3]  # type: ignore[index]


def stands_in_its_module(cls: type) -> bool:
    """Whether a class is found under its name in its module: a class statement may say that it is of any module."""
    found: Any = sys.modules.get(module) if isinstance(module := module_of(cls), str) else None
    for name in qualname_of(cls).split("."):
        found = None if found is None else vars(found).get(name)
        if found is not cls and type(found) is not type:
            return found is cls
    return found is cls


def defining_package(function: FunctionType) -> str | None:
    """The package in one of whose modules a function is defined; None where its globals are no module's.

    `__module__` is what `functools.wraps` copies, so it is often the module of another function.
    """
    scope = function.__globals__
    name = scope.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return name.partition(".")[0] if module is not None and vars(module) is scope else None


def keys_in_order(mapping: dict[Any, Any]) -> list[Any]:
    """The keys of a dict in the order of iteration, past what its class says about it."""
    return [key for key, _ in items_in_order(mapping)]


def items_in_order(mapping: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """`keys_in_order`, each with its item. An OrderedDict has an order of its own, which `move_to_end` changes."""
    if is_subtype(type(mapping), collections.OrderedDict):
        return collections.OrderedDict.items(mapping)
    return dict.items(mapping)


def length_of_container(value: Any) -> int | None:
    """The number of items of a list, dict or set, whatever a subclass says; None for anything else."""
    return next((kind.__len__(value) for kind in (list, dict, set, frozenset) if isinstance(value, kind)), None)


def own_item(mapping: dict[Any, Any], key: Any) -> Any:
    """The item that a dict holds. `dict.__getitem__` would ask `__missing__` of a subclass. Raises KeyError."""
    found = dict.get(mapping, key, _ABSENT)
    if found is _ABSENT:
        raise KeyError
    return found


_ABSENT = object()
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE, Py_TPFLAGS_IMMUTABLETYPE


def name_in_messages(cls: type) -> str:
    """A class as Python's messages name it: a built-in one of a module with the module (`collections.deque`)."""
    is_plain = is_made_by_statement(cls) or cls.__module__ == "builtins"
    return cls.__name__ if is_plain else f"{cls.__module__}.{cls.__name__}"


def name_of_slotted(cls: type) -> str:
    """A class as the message of an empty slot names it: since 3.13 with its module and the classes around it."""
    if sys.version_info < (3, 13):
        return cls.__name__
    is_plain = cls.__module__ in ("builtins", "__main__")
    return cls.__qualname__ if is_plain else f"{cls.__module__}.{cls.__qualname__}"


def is_made_by_statement(cls: type) -> bool:
    """Whether a class is not one of C's: a static type, or a type of the standard library that C makes on the heap."""
    return cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE
