"""Whether two places may hold one object at another call, where the trace has seen two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentityDict, unique
from treadle_tracer.class_facts import is_subtype, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource, GlobalsSource
from treadle_tracer.values.base import ConcreteValue
from treadle_tracer.values.class_lookup import own_dict_source
from treadle_tracer.values.generic_alias import GenericAlias
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
    if isinstance(value, GenericAlias):
        return False
    return isinstance(value, ConcreteValue) or issubclass(value.python_type(), torch.Tensor)


def _is_one_object(value: Value) -> bool:
    """Whether the identity of the object is guarded."""
    return isinstance(value.source, ConstSource)


def guard_changed_objects(tx: TraceContext) -> None:
    """At the end of a trace: an object that the program changes is none of those that the trace has read elsewhere.

    Raises Unsupported when the program changes an object and also has its `__dict__`.
    """
    outside = [value for _, value in tx.wrapped.values() if value.source is not None]
    by_type: IdentityDict[type, list[Value]] = IdentityDict()
    for value in outside:
        by_type.setdefault(value.python_type(), []).append(value)
    changed = _changed(tx)
    for cls in unique(value.python_type() for value in changed):
        _guard_changed(tx, [value for value in changed if value.python_type() is cls], by_type.get(cls, []))
    _guard_own_dicts(tx, changed, outside)
    _guard_scopes(tx, changed, outside)


def guard_hashed_objects(tx: TraceContext) -> None:
    """At the end of a trace: objects that are keys of dicts or members of sets by their identity are different objects."""
    by_type: IdentityDict[type, list[Any]] = IdentityDict()
    for value in tx.hashed.values():
        by_type.setdefault(value.python_type(), []).append(value)
    for values in by_type.values():
        if not all(_is_known_object(tx, value) for value in values):
            _guard_all_apart(tx, [value.source for value in values if value.source is not None])
    if tx.hashes_addresses:
        for number in tx.hashed_numbers:
            number.settle()


def _is_known_object(tx: TraceContext, value: Any) -> bool:
    """Whether the identity of the object is guarded."""
    return _is_one_object(value) if not hasattr(value, "is_known_object") else value.is_known_object(tx)


def _guard_changed(tx: TraceContext, changed: list[Value], others: list[Value]) -> None:
    """Rely on changed objects being different from each other and from others of their type."""
    if len(changed) * len(others) > _MOST_PAIRS:
        # The objects that are only read may be one object to eager, which costs a recompile here.
        values = {id(value): value for value in (*changed, *others)}.values()
        _guard_all_apart(tx, [v.source for v in values if v.source is not None and not _is_compared_by_value(v)])
        return
    for value in changed:
        for other in others:
            if other is not value:
                guard_distinct(tx, value, other)


_MOST_PAIRS = 64  # from here on one guard for all objects is cheaper than one for each pair


def _guard_all_apart(tx: TraceContext, sources: list[Source]) -> None:
    """Rely on the objects at these places being pairwise different."""
    if len(sources) > 1:
        first, *others = sources
        text = f"{first.text} and {len(others)} other objects are different"
        tx.guards.add(first, "distinct_objects", tuple(others), text)


def _changed(tx: TraceContext) -> list[Value]:
    owners = {id(owner): owner for owner, _, _ in tx.mutations.attr_stores()}
    cells = {id(cell): cell for cell, _ in tx.mutations.cell_stores()}
    containers = {id(value): value for value in tx.mutations.containers()}
    return [value for value in (owners | cells | containers).values() if value.source is not None]


def _guard_own_dicts(tx: TraceContext, changed: list[Value], outside: list[Value]) -> None:
    """A dict that the trace knows by itself may be the `__dict__` of an object that it knows, too. One of the two is changed.

    The two may be one object (`self.__dict__ = self`).
    """
    written = {id(value) for value in changed} | {id(getattr(value, "owner", value)) for value in changed}
    dicts = [value for value in outside if is_subtype(value.python_type(), dict)]
    owned = [(value, source) for value in outside if (source := _own_dict_source(value)) is not None]
    owners: dict[int, list[tuple[Value, Source]]] = {}
    for value, source in owned:
        owners.setdefault(id(own_dict(value.obj)), []).append((value, source))  # type: ignore[attr-defined]
    for mapping in dicts:
        for value, source in owners.get(id(getattr(mapping, "obj", None)), ()):
            if id(value) in written or id(mapping) in written:
                assert mapping.source is not None
                raise Unsupported("aliased-dict", f"{mapping.source.text} is {source.text}")
    _guard_apart(tx, [m for m in dicts if id(m) in written], owned)
    _guard_apart(tx, dicts, [pair for pair in owned if id(pair[0]) in written])
    _guard_shared_dicts(tx, written, [pair for pair in owned if not _has_own_dict_alone(pair[0])])


def _has_own_dict_alone(value: Value) -> bool:
    """Whether nobody gives the object the `__dict__` of another: a module or tensor."""
    return any(is_subtype(value.python_type(), cls) for cls in (torch.nn.Module, torch.Tensor))


def _guard_shared_dicts(tx: TraceContext, written: set[int], owned: list[tuple[Value, Source]]) -> None:
    """Several objects may have one `__dict__` (`self.__dict__ = cls.shared`). One of these objects is changed."""
    if not any(id(value) in written for value, _ in owned):
        return
    by_dict: dict[int, list[tuple[Value, Source]]] = {}
    for value, source in owned:
        by_dict.setdefault(id(own_dict(value.obj)), []).append((value, source))  # type: ignore[attr-defined]
    for sharing in by_dict.values():
        if len(sharing) > 1 and any(id(value) in written for value, _ in sharing):
            raise Unsupported("aliased-dict", " is ".join(source.text for _, source in sharing))
    changed = [source for value, source in owned if id(value) in written]
    _guard_all_apart(tx, [sharing[0][1] for sharing in by_dict.values()])
    for sharing in by_dict.values():
        for _, source in sharing[1:]:
            _guard_all_apart(tx, [source, *changed])


def _guard_apart(tx: TraceContext, dicts: list[Value], owned: list[tuple[Value, Source]]) -> None:
    """Rely on none of the dicts being the `__dict__` of one of these objects, which may share one."""
    if not dicts or not owned:
        return
    by_dict = {id(own_dict(value.obj)): source for value, source in owned}  # type: ignore[attr-defined]
    known = set(by_dict.values())
    shared = [source for _, source in owned if source not in known]
    sources = [mapping.source for mapping in dicts if mapping.source is not None and mapping.source not in known]
    _guard_all_apart(tx, [*sources, *by_dict.values()])
    for source in shared:
        _guard_all_apart(tx, [source, *sources])


def _guard_scopes(tx: TraceContext, changed: list[Value], outside: list[Value]) -> None:
    """A dict that the trace knows by itself may be the globals of a function, where the program changes one of the two."""
    stores = any(True for _ in tx.mutations.global_stores())
    written = {id(value) for value in changed}
    scopes = {id(scope): tx.globals_source(scope) or GlobalsSource() for scope in tx.scopes.values()}
    sources: list[Source] = []
    for mapping in outside:
        if mapping.python_type() is not dict or mapping.source is None or not (stores or id(mapping) in written):
            continue
        scope = scopes.get(id(getattr(mapping, "obj", None)))
        if scope is not None:
            raise Unsupported("aliased-dict", f"{mapping.source.text} is {scope.text}")
        if not isinstance(mapping.source, ConstSource):
            sources.append(mapping.source)
    if len(sources) * len(scopes) > _MOST_PAIRS:
        _guard_all_apart(tx, [*sources, *scopes.values()])
        return
    for source in sources:
        for scope in scopes.values():
            tx.guards.add(source, "distinct_objects", (scope,))


def _own_dict_source(value: Value) -> Source | None:
    obj: Any = getattr(value, "obj", None)
    if obj is None or isinstance(value, ConcreteValue) or value.source is None or not isinstance(own_dict(obj), dict):
        return None
    return own_dict_source(value.python_type(), value.source)
