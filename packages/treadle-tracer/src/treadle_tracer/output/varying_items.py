"""Items of lists and tuples that differ from call to call in more than sizes and numbers: the function is not compiled for each of them.

    states = torch.cat([s for s in batch.next_state if s is not None])      # other items are None in each call

Each call would get a compiled version, up to the limit. Where calls keep differing at several items of one container, or in its length, the
next trace breaks before the call that first asks for them, and Python makes that call. What it gives is what the continuation begins with.
Only what is passed as data counts: what modules hold differs from one instance to the next, and each instance is worth a version.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from ..by_identity import is_one_of
from ..source import PathKeys, Source, path_key
from .call_changes import follow
from .recompile_reasons import failing_checks

# The key of a path with `_ANY` for one index; with `_LENGTH` behind it, the length of what is there.
Place = tuple[Any, ...]
_ANY, _LENGTH = "any item", "length"
_ITEMS = ("list_item", "tuple_item")
_ASKS = ("CALL", "UNPACK_SEQUENCE")  # what Python can do in place of the trace, and is done once
_OF_DATA = frozenset((*_ITEMS, "dict_item"))
_ON_OBJECTS = ("is", "type_is", "equals")
# At so many items one call must differ. Truth values and strings are often options, and each choice of options is worth a version.
_FEWEST_ITEMS, _FEWEST_OPTIONS = 2, 3
# In so many calls the items must differ from those of all earlier versions, and so often the length, which seldom takes many values.
_FEWEST_CALLS, _FEWEST_LENGTHS = 2, 4


def differing_items(entry: Any, frame: Any) -> set[Place]:
    """Where this call has other items than the entry, or another number of them."""
    keys = PathKeys()
    tensors = {keys.of(guard.source.path): guard for guard in entry.payload.tensors}
    found: set[Place] = set()
    positions: defaultdict[Place, set[Any]] = defaultdict(set)
    options: set[Place] = set()
    for check in failing_checks(entry, frame):
        key = keys.of(check.path)
        owner = next((tensors[key[:end]] for end in range(len(key), 0, -1) if key[:end] in tensors), None)
        if owner is not None and type(follow(owner.source.path, frame)) is not owner.kind:
            key = keys.of(owner.source.path)
        elif check.op == "len" and _is_data(key):
            found.add((*key, _LENGTH))
            continue
        elif owner is not None or check.op not in _ON_OBJECTS or _is_number(check, frame):
            continue
        for place, position in _with_any_item(key) if _is_data(key) else ():
            positions[place].add(position)
            if check.op == "equals" and owner is None:
                options.add(place)
    fewest = {place: _FEWEST_OPTIONS if place in options else _FEWEST_ITEMS for place in positions}
    return found | {place for place, items in positions.items() if len(items) >= fewest[place]}


def keep_differing(differing: Mapping[Place, int]) -> set[Place]:
    """The places at which so many calls have differed that the next is expected to. differing: how many have, by place."""
    return {
        place
        for place, calls in differing.items()
        if calls >= (_FEWEST_LENGTHS if place[-1] == _LENGTH else _FEWEST_CALLS)
    }


def _is_data(key: Place) -> bool:
    """Whether the path leads from a variable through items alone."""
    return all(accessor[0] in _OF_DATA for accessor in key[1:])


def _is_number(check: Any, frame: Any) -> bool:
    """Whether a check expects an int or float, and this call has another one: it becomes a symbol."""
    return check.op == "equals" and is_one_of(type(follow(check.path, frame)), (int, float))


def _with_any_item(key: Place) -> Iterator[tuple[Place, Any]]:
    """A path with each of its indices left open in turn, and that index."""
    for at, accessor in enumerate(key):
        if accessor[0] in _ITEMS:
            yield (*key[:at], (accessor[0], _ANY), *key[at + 1 :]), accessor[1]


class RootFrame(Protocol):
    """The frame that is traced."""

    at: int
    tx: Any

    @property
    def instructions(self) -> Any: ...

    def break_step(self) -> int: ...


class VaryingItems:
    """Where a trace first relies on what differs from call to call.

    step   of the trace, before the call of the root frame that does so; None if none has, or no call does
    stack  the place in the program
    """

    def __init__(self, places: Collection[Place], root: RootFrame):
        self._places = frozenset(places)
        self._root = weakref.ref(root)
        self._is_found = False
        self.step: int | None = None
        self.stack: tuple[tuple[str, int, str], ...] = ()

    def note(self, source: Source, op: str) -> None:
        """The trace relies on a check of what is at `source`."""
        if self._is_found or not self._varies(path_key(source.path), op):
            return
        self._is_found = True
        root = self._root()
        if root is not None and root.instructions[root.at].opname.startswith(_ASKS):
            self.step, self.stack = root.break_step(), root.tx.user_stack()

    def _varies(self, key: Place, op: str) -> bool:
        if op == "len":
            return (*key, _LENGTH) in self._places
        prefixes = (key[:end] for end in range(len(key), 0, -1))
        return any(place in self._places for prefix in prefixes for place, _ in _with_any_item(prefix))


__all__ = ["Place", "VaryingItems", "differing_items", "keep_differing"]
