"""Whether two places may hold one object at another call, where the trace has seen two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource, GlobalsSource, OwnDictSource
from treadle_tracer.values.base import ConcreteValue
from treadle_tracer.values.class_lookup import own_dict
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


def guard_distinct(tx: TraceContext, a: Value, b: Value) -> None:
    """Rely on two Values standing for different objects. Objects of different types, which are guarded, need nothing."""
    if a.python_type() is not b.python_type() or a.source is None or b.source is None:
        return
    if _is_compared_by_value(a) or _is_compared_by_value(b) or (_is_one_object(a) and _is_one_object(b)):
        return
    tx.guards.add(a.source, "distinct_objects", (b.source,))


def _is_compared_by_value(value: Value) -> bool:
    """Constants may be other objects that are equal, and tensors have guards of their own (`output.guards`)."""
    return isinstance(value, ConcreteValue) or issubclass(value.python_type(), torch.Tensor)


def _is_one_object(value: Value) -> bool:
    """Whether the identity of the object is guarded."""
    return isinstance(value.source, ConstSource)


def guard_changed_objects(tx: TraceContext) -> None:
    """At the end of a trace: an object that the program changes is none of those that the trace has read elsewhere.

    Raises Unsupported when the program changes an object and also has its `__dict__`.
    """
    outside = [value for _, value in tx.wrapped.values() if value.source is not None]
    by_type: dict[type, list[Value]] = {}
    for value in outside:
        by_type.setdefault(value.python_type(), []).append(value)
    changed = _changed(tx)
    for value in changed:
        for other in by_type.get(value.python_type(), ()):
            if other is not value:
                guard_distinct(tx, value, other)
    _guard_own_dicts(tx, changed, outside)
    _guard_scopes(tx, changed, outside)


def _changed(tx: TraceContext) -> list[Value]:
    owners = {id(owner): owner for owner, _, _ in tx.mutations.attr_stores()}
    cells = {id(cell): cell for cell, _ in tx.mutations.cell_stores()}
    containers = {id(value): value for value in tx.mutations.containers()}
    return [value for value in (owners | cells | containers).values() if value.source is not None]


def _guard_own_dicts(tx: TraceContext, changed: list[Value], outside: list[Value]) -> None:
    """A dict that the trace knows by itself may be the `__dict__` of an object that it knows, too."""
    dicts = [value for value in outside if value.python_type() is dict]
    objects = [(value, _own_dict_source(value)) for value in outside]
    written = {id(value) for value in changed}
    for owner, source in objects:
        if source is None:
            continue
        for mapping in dicts:
            if id(owner) in written or id(mapping) in written:
                assert mapping.source is not None
                if getattr(mapping, "obj", None) is own_dict(owner.obj):  # type: ignore[attr-defined]
                    raise Unsupported("aliased-dict", f"{mapping.source.text} is {source.text}")
                if mapping.source != source:
                    tx.guards.add(source, "distinct_objects", (mapping.source,))


def _guard_scopes(tx: TraceContext, changed: list[Value], outside: list[Value]) -> None:
    """A dict that the trace knows by itself may be the globals of a function, where the program changes one of the two."""
    stores = any(True for _ in tx.mutations.global_stores())
    for mapping in outside:
        if mapping.python_type() is not dict or not (stores or any(mapping is value for value in changed)):
            continue
        for scope in tx.scopes.values():
            source = tx.globals_source(scope) or GlobalsSource()
            if getattr(mapping, "obj", None) is scope:
                raise Unsupported("aliased-dict", f"{mapping.source.text} is {source.text}")  # type: ignore[union-attr]
            if not isinstance(mapping.source, ConstSource):
                tx.guards.add(mapping.source, "distinct_objects", (source,))  # type: ignore[arg-type]


def _own_dict_source(value: Value) -> Source | None:
    obj: Any = getattr(value, "obj", None)
    if obj is None or isinstance(value, ConcreteValue) or value.source is None or type(own_dict(obj)) is not dict:
        return None
    return OwnDictSource(value.source)
