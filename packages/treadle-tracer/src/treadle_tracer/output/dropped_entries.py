"""Entries that no call can take any more, because something that their guards are about is gone.

They are dropped at once: their graphs hold parameters, and those would otherwise stay until the function is called again, or for good. What
they have shown of the calls (sizes, numbers, which module was where) is remembered until the next compile learns from it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

import torch

import treadle_frame

if TYPE_CHECKING:
    from .guards import TensorGuard

_GONE: Any = object()  # in place of a parameter; no tensor is it


@dataclass(eq=False)
class DroppedEntry:
    """What is remembered of an entry: it has the payload and the checks of one, without the graph and the tensors that these held."""

    payload: Any  # a Payload
    checks: tuple[Any, ...]

    @property
    def guard(self) -> DroppedEntry:
        """Where an entry has its guard program."""
        return self

    @classmethod
    def of(cls, entry: Any) -> DroppedEntry:
        """What to remember of an entry."""
        tensors = tuple(map(_without_tensor, entry.payload.tensors))
        kept = replace(entry.payload, graph_module=None, tensors=tensors, reason=None, dynamic=None, references=None)
        return cls(kept, tuple(check for check in entry.guard.checks if not isinstance(check.arg, torch.Tensor)))


def _without_tensor(guard: TensorGuard) -> TensorGuard:
    return guard if guard.identity is None else replace(guard, identity=_GONE)


class Record(Protocol):
    """What remembers the entries of a code: its `CodeState`."""

    def remember(self, entry: DroppedEntry) -> None: ...

    def give_up(self, references: Any) -> None: ...


class References:
    """Weak references to objects. Entries whose payloads have this in common are dropped when one of the objects is gone.

    code: what the entries are of. state: the record of that, which remembers them.
    """

    def __init__(self, objects: Iterable[Any], code: CodeType, state: Record):
        self._code = weakref.ref(code)
        self._state = state
        self._references = [weakref.ref(obj, _dropping(self)) for obj in objects]

    def drop(self) -> None:
        """Drop the entries."""
        code = self._code()
        for entry in () if code is None else treadle_frame.entries(code):
            if getattr(entry.payload, "references", None) is self and treadle_frame.remove_entry(code, entry):
                self._state.remember(DroppedEntry.of(entry))
        self._state.give_up(self)


def _dropping(references: References) -> Callable[[weakref.ref[Any]], None]:
    of_entries, is_finalizing = weakref.ref(references), sys.is_finalizing

    def drop(gone: weakref.ref[Any]) -> None:
        found = of_entries()
        if found is not None and not is_finalizing():  # at the end of the process this module may be empty
            found.drop()

    return drop


__all__ = ["DroppedEntry", "References"]
