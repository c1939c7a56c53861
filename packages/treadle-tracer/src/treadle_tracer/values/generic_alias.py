"""Generic aliases and unions: `list[int]`, `int | None`.

Programs make them anew where they evaluate an annotation (`def inner(x: list[int])`), so an outside one is guarded to be equal, if equality
runs no code of the program. Which object it is gets guarded where the program asks.
"""

from __future__ import annotations

import collections.abc
import operator
import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import has_instance_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import ConcreteValue
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


_OF_CALLABLES: type = type(collections.abc.Callable[..., None])  # type: ignore[assignment]
PLAIN_ALIASES: tuple[Any, ...] = (types.GenericAlias, types.UnionType, _OF_CALLABLES)
"""The types of `list[int]`, `int | None` and `Callable[[int], bool]`, which are equal if their parts are."""


class GenericAlias(ConcreteValue):
    """`list[int]`, `int | None`, `typing.List` and the like: calling one calls its origin."""

    __slots__ = ()

    def truth(self, tx: TraceContext) -> bool:
        return True

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        value = getattr(self.obj, name, MISSING)
        if value is MISSING:
            tx.raise_exception(AttributeError, f"{type(self.obj).__name__!r} object has no attribute {name!r}")
        return tx.from_constant(value) if isinstance(value, tuple) else tx.wrap(value, ConstSource(value, is_made=True))

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        return tx.fold(operator.getitem, [self, key], {})

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made_by = lookup(tx, type(self.obj), "__call__")
        if isinstance(made_by, types.FunctionType):  # an alias or special form of typing
            return tx.inline(tx.wrap_known(made_by), [self, *args], kwargs)
        if not isinstance(self.obj, types.GenericAlias):
            raise Unsupported("raises", f"a call of {self.describe()}")
        made = tx.wrap_known(self.obj.__origin__).call(tx, args, kwargs)
        if has_instance_dict(made.python_type()):
            _set_original_class(tx, made, self)
        return made

    def rely_on_identity(self, tx: TraceContext) -> None:
        """Guard which object it is, where only equality has been guarded."""
        if self.source is not None and not isinstance(self.source, ConstSource):
            tx.guards.add(self.source, "is", self.obj)


def _set_original_class(tx: TraceContext, made: Value, alias: GenericAlias) -> None:
    """Note on an object what made it, if the object takes notes (Objects/genericaliasobject.c, `ga_call`)."""
    try:
        made.set_attr(tx, "__orig_class__", alias)
    except Raised as raised:
        if not issubclass(raised.value.python_type(), (AttributeError, TypeError)):
            raise


def wrap_alias(tx: TraceContext, obj: Any, source: Source) -> GenericAlias:
    """The Value of an outside alias or union."""
    if not isinstance(source, ConstSource):
        tx.guards.add(source, "equals" if _is_of_plain_classes(obj) else "is", obj)
    return GenericAlias(obj, source)


def _is_of_plain_classes(obj: Any) -> bool:
    """Whether equality of this alias or union runs no code of the program."""
    if not is_one_of(type(obj), PLAIN_ALIASES):
        return obj is ... or (isinstance(obj, type) and type(obj).__eq__ is type.__eq__)
    parts = (*obj.__args__, *([] if type(obj) is types.UnionType else [obj.__origin__]))
    return all(map(_is_of_plain_classes, parts))
