"""Which objects are constants, compared by value, and which classes and functions are taken as never replaced."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

import torch
import torch.nn.attention

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import defining_package, is_subtype, module_of
from treadle_tracer.weakly import class_may_change

CONSTANT_TYPES: IdentitySet[type] = IdentitySet(
    {
        type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, types.CodeType,
        torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme, torch.finfo, torch.iinfo,
        torch.nn.attention.SDPBackend,
    }
)  # fmt: skip
"""Types whose objects are immutable and compared by value."""

_TRUSTED = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "typing_extensions"}


def is_constant_object(obj: Any) -> bool:
    """Whether the object is immutable and compared by value."""
    cls = type(obj)
    if cls in CONSTANT_TYPES or is_subtype(cls, enum.Enum) or is_numpy_scalar(obj):
        return True
    if is_numpy_dtype(obj):
        return True
    if cls is slice:
        return all(is_constant_object(part) for part in (obj.start, obj.stop, obj.step))
    return False


def is_numpy_type(cls: type) -> bool:
    """Whether the class is one of NumPy's own, written in C."""
    return module_of(cls) == "numpy" and not class_may_change(cls)


def is_numpy_scalar(obj: Any) -> bool:
    """Whether the object is a number of NumPy's, which never changes: no array without dimensions."""
    cls = type(obj)
    return is_numpy_type(cls) and not hasattr(cls, "__setitem__") and getattr(obj, "shape", None) == ()


def is_numpy_dtype(obj: Any) -> bool:
    """Whether the object is a dtype of NumPy's own, of plain numbers."""
    return type(type(obj)).__name__ == "_DTypeMeta" and obj.isbuiltin == 1 and obj.metadata is None


def is_trusted_name(module: Any) -> bool:
    """Whether functions and classes of this module are taken as never replaced: PyTorch and the standard library."""
    return isinstance(module, str) and module.partition(".")[0] in _TRUSTED and module != "__main__"


def is_trusted_function(function: Any) -> bool:
    """`is_trusted_name` of the module that defines a function."""
    if type(function) is types.FunctionType:
        package = defining_package(function)
        return package != "__main__" and package in _TRUSTED
    return is_trusted_name(getattr(function, "__module__", None))


def may_be_another(obj: Any) -> bool:
    """Whether a constant that is equal to this one may be another object."""
    return not isinstance(obj, _SINGLE) and not _is_cached(obj)


_SINGLE = (
    bool,
    type(None),
    type(Ellipsis),
    type(NotImplemented),
    enum.Enum,
    types.CodeType,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.qscheme,
    torch.nn.attention.SDPBackend,
)
"""Types that have one object for each value."""


def _is_cached(obj: Any) -> bool:
    """Whether Python itself has one object for all that are equal to this one."""
    return (type(obj) is int and -5 <= obj <= 256) or ((type(obj) is str or type(obj) is bytes) and len(obj) == 0)
