"""Tuples of ints and strings that differ from call to call, as keys of dicts.

    if (h, w, x.dtype) not in grids:
        grids[h, w, x.dtype] = make(h, w)

Guarded is whether `grids` has the tuple of what a call finds at the places of `h` and `w`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.computed_source import ComputedSource, TupleOf, is_plain_key
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import NotConstant, Value
from treadle_tracer.values.varying import KINDS, VaryingKind, hint_of, place_of, varies

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


def read_items(tx: TraceContext, key: Value) -> None:
    """Read the items of a key that is a tuple: one from outside tells only then which of its items vary. Where one does, the others are
    hashed here, which may raise."""
    if not isinstance(key, TupleValue):
        return
    items = key.unpack(tx)
    if _has_open_item(key):
        for item in items:
            read_items(tx, item)
            if not varies(item):
                item.hash_key(tx)


def is_followed(tx: TraceContext, key: Value, is_outside: bool) -> bool:
    """Whether guards can follow a key that varies: in an outside dict the key itself, in one of the trace what it is compared by."""
    if is_outside or not isinstance(key, TupleValue):
        return place_of(tx, key) is not None
    return all(is_followed(tx, item, False) for item in key.unpack(tx) if varies(item))


def _has_open_item(value: TupleValue) -> bool:
    open_items = [item for item in value.items if varies(item)] if value.cls in _KEYS else []
    return bool(open_items) and all(item.python_type() in _ITEMS for item in open_items)  # a float may be no number


def _place_of_tuple(tx: TraceContext, value: TupleValue) -> Source | None:
    """The tuple of what a call finds at the places of the items that vary, and of the constants between them."""
    if not _has_open_item(value):
        return None
    template: list[tuple[bool, Any]] = []
    places: list[Source] = []
    for item in value.unpack(tx):
        place = place_of(tx, item)
        if place is not None:
            template.append((True, None))
            places.append(place)
            continue
        try:
            template.append((False, item.constant()))
        except NotConstant:
            return None
        if varies(item) or not is_plain_key(template[-1][1]):
            return None
    return ComputedSource(TupleOf(tuple(template)), tuple(places))


def _hint_of_tuple(tx: TraceContext, value: TupleValue) -> tuple[Any, ...]:
    return tuple(hint_of(tx, item) if varies(item) else item.constant() for item in value.unpack(tx))


_KEYS = IdentitySet({tuple, torch.Size})
_ITEMS = IdentitySet({int, str, tuple, torch.Size})
KINDS[TupleValue] = VaryingKind(_place_of_tuple, _hint_of_tuple, _has_open_item)
