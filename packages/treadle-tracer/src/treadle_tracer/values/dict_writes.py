"""What a program does to a dict from outside, to be done to the real one behind the graph.

The calls themselves are replayed, not the contents they leave: the real dict keeps its own keys, which may be other objects than equal
ones of the program, and whoever iterates over it goes on where it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING

from treadle_tracer.values.keys import asks_objects

if TYPE_CHECKING:
    from treadle_tracer.values.value import Value


class DictWrites:
    """The calls, in order, as long as they are known."""

    __slots__ = ("_calls", "_places")

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Value, ...]]] | None = []
        self._places: dict[Hashable, int] = {}  # where the item under a hash key was stored last

    def to_replay(self, most: int) -> list[tuple[Callable[..., object], tuple[Value, ...]]] | None:
        """At most `most` calls; None where there are more, or only the contents are known."""
        return None if self._calls is None or len(self._calls) > most else self._calls

    def store(self, hashed: Hashable, key: Value, value: Value) -> None:
        """`dict[key] = value`"""
        if self._calls is None:
            return
        if asks_objects(hashed):
            self.forget()
            return
        place = self._places.get(hashed)
        if place is None:
            self._places[hashed] = len(self._calls)
            self._calls.append((dict.__setitem__, (key, value)))
        else:  # an equal key stays the first
            function, (first, _) = self._calls[place]
            self._calls[place] = (function, (first, value))

    def delete(self, hashed: Hashable, key: Value) -> None:
        """`del dict[key]`, which is there."""
        if self._calls is None:
            return
        if asks_objects(hashed):
            self.forget()
            return
        self._places.pop(hashed, None)
        self._calls.append((dict.__delitem__, (key,)))

    def pop_last(self, hashed: Hashable) -> None:
        """`dict.popitem()`, of the item under `hashed`. Unlike `del` it leaves no gap where the next item is stored behind."""
        if self._calls is not None:
            self._places.pop(hashed, None)
            self._calls.append((dict.popitem, ()))

    @contextlib.contextmanager
    def update(self, other: Value) -> Iterator[None]:
        """The stores in here are those of `dict.update(other)`, a plain dict. It may lay out the dict anew, which stores need not."""
        self._places.clear()
        first = 0 if self._calls is None else len(self._calls)
        yield
        self._places.clear()
        if self._calls is not None:
            self._calls[first:] = [(dict.update, (other,))]

    def clear(self) -> None:
        """`dict.clear()`: no call before it matters."""
        self._places.clear()
        self._calls = [(dict.clear, ())]

    def forget(self) -> None:
        """From here on only the contents are known."""
        self._calls = None

    def forget_places(self) -> None:
        """The hash keys are no longer those that were told."""
        self._places.clear()
