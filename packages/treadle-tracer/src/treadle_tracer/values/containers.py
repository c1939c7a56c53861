"""`__init__` of built-in containers."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import is_none
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import ListValue
from treadle_tracer.values.sets import SetValue, entries_of, replace_items
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def init_container(
    tx: TraceContext, container: Value, args: list[Value], kwargs: dict[str, Value] | None = None
) -> None:
    """`__init__` of a list, dict or set (or subclass's built-in part). That of a partial is `object.__init__`."""
    if isinstance(container, ListValue):
        container.items[:] = args[0].unpack(tx) if args else []
        container.changed(tx)
    elif isinstance(container, SetValue) and is_subtype(container.cls, frozenset):
        return  # its members came with `__new__`: `object.__init__`
    elif isinstance(container, SetValue):
        items = [ListValue(args[0].unpack(tx))] if args else []
        replace_items(container, tx, entries_of(tx, items[0]) if args else {}, set.__init__, list(items))
    elif isinstance(container, DictValue):
        if issubclass(container.cls, collections.defaultdict) and args:
            factory = args[0]
            container.default_factory = None if is_none(factory) else factory
            args = args[1:]
        if len(args) > 1:
            raise Unsupported("raises", f"{container.cls.__name__} of {len(args)} arguments")
        container.builtin_method(tx, "update", args, kwargs or {})
