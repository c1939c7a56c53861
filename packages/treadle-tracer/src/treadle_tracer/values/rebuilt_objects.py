"""Run-time helpers of replacement code: instances that the trace has made are made for real, past the program's own `__init__`."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import mro_of, own_dict
from treadle_tracer.values.class_lookup import find_in_mro


def new_instance(cls: type, *args: Any) -> Any:
    """An instance as `__new__` of its built-in base makes it."""
    base = next(b for b in mro_of(cls) if b in _NEW_BASES)
    return base.__new__(cls, *args)


_NEW_BASES = IdentitySet({
    types.SimpleNamespace,object, dict, list, set, frozenset, tuple, int, float, str, BaseException, Exception, OSError, BaseExceptionGroup,
              collections.OrderedDict, collections.defaultdict, collections.deque})  # fmt: skip


def set_attributes(obj: Any, attrs: dict[str, Any]) -> None:
    """Set attributes past `__setattr__`: slots by their descriptors, others in the instance dict."""
    attributes: Any = own_dict(obj)
    for name, value in attrs.items():
        slot = find_in_mro(mro_of(type(obj)), name)[0]
        if isinstance(slot, types.MemberDescriptorType | types.GetSetDescriptorType):
            slot.__set__(obj, value)
        else:
            attributes[name] = value


def _fill_ordered(obj: Any, contents: dict[Any, Any]) -> None:
    for key, value in contents.items():
        collections.OrderedDict.__setitem__(obj, key, value)


FILLERS: dict[type, Callable[[Any, Any], Any]] = {
    collections.OrderedDict: _fill_ordered,
    dict: dict.update,
    list: list.extend,
    set: set.update,
}
