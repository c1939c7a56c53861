"""Raw attributes of classes, found along the MRO and guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from treadle_tracer.source import AttrSource, ConstSource, ItemSource
from treadle_tracer.values.constants import is_constant_object, is_trusted_class

if TYPE_CHECKING:
    from treadle_tracer.source import Source


class Missing:
    """Type of `MISSING`, which stands for "no such thing" where None is a possible answer."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


class Guards(Protocol):
    """The guards of a trace, for those who add some."""

    def add(self, source: Source, op: str, arg: Any = None, reason: str = "") -> None:
        """The trace relies on `op` holding for the object at `source`: see `output.guards`."""

    def add_integer(self, source: Source) -> None:
        """The int at `source` is a symbol."""

    def add_float(self, source: Source) -> None:
        """The float at `source` is a symbol."""


class LooksUp(Protocol):
    """What `lookup` needs of a trace."""

    @property
    def guards(self) -> Guards:
        """The guards of the trace."""
        ...

    @property
    def lookup_cache(self) -> dict[tuple[type, str], tuple[Any, type | None]]:
        """(raw attribute, class that has it) by (class, name); (MISSING, None) where there is none."""
        ...


def find_in_mro(mro: tuple[type, ...], name: str) -> tuple[Any, type | None]:
    """(raw attribute, class that has it) or (MISSING, None)."""
    for cls in mro:
        found = cls.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found, cls
    return MISSING, None


def class_attribute_source(owner: type, name: str) -> Source:
    """Where a class dict holds an attribute, whatever descriptor it is."""
    return ItemSource(AttrSource(ConstSource(owner), "__dict__"), name)


def lookup(tx: LooksUp, cls: type, name: str) -> Any:
    """The raw attribute found on the type, guarded once, or MISSING."""
    cache = tx.lookup_cache
    found = cache.get((cls, name))
    if found is not None:
        return found[0]
    raw, owner = find_in_mro(cls.__mro__, name)
    cache[cls, name] = (raw, owner)
    if owner is not None and not is_trusted_class(owner) and not is_constant_object(raw):
        tx.guards.add(class_attribute_source(owner, name), "is", raw)
    return raw


def lookup_owner(tx: LooksUp, cls: type, name: str) -> type | None:
    """The class in the MRO that has the attribute, or None."""
    lookup(tx, cls, name)
    return tx.lookup_cache[cls, name][1]


def is_data_descriptor(raw: Any) -> bool:
    """Whether a raw class attribute goes before the instance dict."""
    cls = type(raw)
    return hasattr(cls, "__set__") or hasattr(cls, "__delete__")
