"""Run-time helpers of replacement code: instances that the trace has made are made for real, past the program's own `__init__`."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any


def new_instance(cls: type, *args: Any) -> Any:
    """An instance as `__new__` of its built-in base makes it."""
    base = next(b for b in cls.__mro__ if b in _NEW_BASES)
    return base.__new__(cls, *args)


_NEW_BASES = {
    types.SimpleNamespace,object, dict, list, set, frozenset, tuple, int, float, str, BaseException, Exception, OSError, BaseExceptionGroup,
              collections.OrderedDict, collections.defaultdict, collections.deque}  # fmt: skip


def set_attributes(obj: Any, attrs: dict[str, Any]) -> None:
    """Set attributes past `__setattr__`: slots by their descriptors, others in the instance dict."""
    for name, value in attrs.items():
        slot = getattr(type(obj), name, None)
        if isinstance(slot, types.MemberDescriptorType | types.GetSetDescriptorType):
            slot.__set__(obj, value)
        else:
            obj.__dict__[name] = value


def _fill_ordered(obj: Any, contents: dict[Any, Any]) -> None:
    for key, value in contents.items():
        collections.OrderedDict.__setitem__(obj, key, value)


FILLERS: dict[type, Callable[[Any, Any], Any]] = {
    collections.OrderedDict: _fill_ordered,
    dict: dict.update,
    list: list.extend,
    set: set.update,
}
