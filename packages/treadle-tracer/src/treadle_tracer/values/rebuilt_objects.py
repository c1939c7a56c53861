"""Run-time helpers of replacement code: instances that the trace has made are made for real, past the program's own `__init__`."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import mro_of, own_dict
from treadle_tracer.values.class_lookup import find_in_mro

if TYPE_CHECKING:
    from treadle_tracer.values.value import Value


def new_instance(cls: type, *args: Any) -> Any:
    """An instance as `__new__` of its built-in base makes it."""
    base = next(b for b in mro_of(cls) if b in _NEW_BASES)
    return base.__new__(cls, *args)


_NEW_BASES = IdentitySet({
    types.SimpleNamespace,object, dict, list, set, frozenset, tuple, int, float, str, BaseException, Exception, OSError, BaseExceptionGroup,
              collections.OrderedDict, collections.defaultdict, collections.deque})  # fmt: skip


def set_attributes(obj: Any, attrs: dict[str, Any]) -> None:
    """Set attributes past `__setattr__`: slots by their descriptors, others in the instance dict."""
    attributes: Any = obj.__dict__ if isinstance(obj, functools.partial) else own_dict(obj)
    for name, value in attrs.items():
        slot = find_in_mro(mro_of(type(obj)), name)[0]
        if isinstance(slot, types.MemberDescriptorType | types.GetSetDescriptorType):
            slot.__set__(obj, value)
        else:
            attributes[name] = value


def emit_attributes(
    cg: Any,
    owner: Value,
    attributes: Mapping[str, Value],
    store: Callable[[Any, dict[str, Any]], None] = set_attributes,
) -> None:
    """Emit `store(owner, attributes)`."""
    cg.cb.push_null()
    cg.const(store)
    cg.value(owner)
    for name, value in attributes.items():
        cg.const(name)
        cg.value(value)
    cg.cb.build_map(len(attributes))
    cg.cb.call(2)
    cg.cb.pop_top()


def _fill_ordered(obj: Any, contents: dict[Any, Any]) -> None:
    for key, value in contents.items():
        collections.OrderedDict.__setitem__(obj, key, value)


FILLERS: dict[type, Callable[[Any, Any], Any]] = {
    collections.OrderedDict: _fill_ordered,
    dict: dict.update,
    list: list.extend,
    set: set.update,
}
