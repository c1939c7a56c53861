"""OrderedDicts: attributes of plain ones, which have an instance dict (`state_dict()._metadata`), and methods that subclasses redefine."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import OwnDictSource
from treadle_tracer.values.class_lookup import MISSING, find_in_mro, instance_dict_source, lookup
from treadle_tracer.values.rebuilt_objects import emit_attributes
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def read_attribute(tx: TraceContext, mapping: Any, name: str) -> Value | None:
    """The attribute in the instance dict of an OrderedDict, or None."""
    if name == "__dict__":
        raise Unsupported("attribute", f"{mapping.describe()}.__dict__")
    stored = tx.mutations.load_attr(mapping, name)
    if stored is not None:
        return stored if isinstance(stored, Value) else None
    if mapping.obj is None or mapping.source is None:
        return None
    attributes: Any = own_dict(mapping.obj)
    if name in attributes:
        return tx.wrap(attributes[name], instance_dict_source(tx, mapping.obj, mapping.source, name))
    tx.guards.add(OwnDictSource(mapping.source), "lacks_key", name)
    return None


def why_not_writable(tx: TraceContext, mapping: Any, name: str) -> str | None:
    """Why the trace does not store or delete this attribute."""
    if mapping.source is not None or mapping.owner is not None:
        return f"{mapping.describe()}.{name} of an OrderedDict from outside"
    if lookup(tx, mapping.cls, name) is not MISSING:
        return f"{mapping.describe()}.{name}, which its class has"
    return None


def reconstruct_attributes(mapping: Any, cg: Any) -> None:
    """Give the real OrderedDict on top of the stack the attributes that the trace has stored."""
    attributes = {name: value for name, value in cg.attrs_of(mapping).items() if isinstance(value, Value)}
    if not attributes:
        return
    if cg.is_cyclic(mapping):
        raise Unsupported("reconstruct", "an OrderedDict with attributes that contains itself")
    cg.register(mapping)
    emit_attributes(cg, mapping, attributes)


# ---- subclasses

_ASKED = {
    "setdefault": ("__contains__", "__getitem__"),
    **dict.fromkeys(("pop", "popitem"), ("__contains__", "__getitem__", "__delitem__")),
    **dict.fromkeys(("copy", "__copy__"), ("__getitem__", "__setitem__")),
}
"""What these methods, implemented in C, call of a subclass that redefines it (Objects/odictobject.c); all that store call `__setitem__`."""


def redefines(tx: TraceContext, mapping: Any, name: str) -> bool:
    """Whether it is the built-in part of an instance of a subclass of OrderedDict that has such a method of its own."""
    if mapping.owner is None or mapping.cls is not collections.OrderedDict:
        return False
    own, _ = find_in_mro(collections.OrderedDict.__mro__, name)
    return lookup(tx, mapping.owner.python_type(), name) is not own


def why_not_built_in(tx: TraceContext, mapping: Any, name: str) -> str | None:
    """Why this method does something else than that of a plain dict."""
    if name in ("copy", "__copy__") and mapping.owner is not None:
        if lookup(tx, mapping.owner.python_type(), "__iter__") is not find_in_mro(mapping.cls.__mro__, "__iter__")[0]:
            return f"copy of a subclass of {mapping.cls.__name__} with an __iter__ of its own, which calls keys"
    asked = next((asked for asked in _ASKED.get(name, ()) if redefines(tx, mapping, asked)), None)
    return None if asked is None else f"{name} of {mapping.cls.__name__}, which calls {asked}"
