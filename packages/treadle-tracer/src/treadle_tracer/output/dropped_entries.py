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
from typing import TYPE_CHECKING, Any

import torch

import treadle_frame

if TYPE_CHECKING:
    from .entry import Payload
    from .guards import TensorGuard

_GONE: Any = object()  # in place of a parameter; no tensor is it


@dataclass(eq=False)
class DroppedEntry:
    """What is remembered of an entry: it has the payload and the checks of one, without the graph and the tensors that these held."""

    payload: Payload
    checks: tuple[Any, ...]

    @property
    def guard(self) -> DroppedEntry:
        """Where an entry has its guard program."""
        return self

    @classmethod
    def of(cls, entry: Any) -> DroppedEntry:
        """What to remember of an entry."""
        tensors = tuple(map(_without_tensor, entry.payload.tensors))
        kept = replace(entry.payload, graph_module=None, tensors=tensors, reason=None, dynamic=None, references=())
        return cls(kept, tuple(check for check in entry.guard.checks if not isinstance(check.arg, torch.Tensor)))


def _without_tensor(guard: TensorGuard) -> TensorGuard:
    return guard if guard.identity is None else replace(guard, identity=_GONE)


def dropped_with(
    objects: Iterable[Any], code: CodeType, payload: Payload, remember: Callable[[DroppedEntry], None]
) -> tuple[weakref.ref[Any], ...]:
    """References to objects. As long as these references are kept, the entries of `payload` are dropped when one of the objects is gone.

    remember: called with what is remembered of each.
    """
    code_reference, payload_reference = weakref.ref(code), weakref.ref(payload)
    is_finalizing = sys.is_finalizing

    def drop(gone: weakref.ref[Any]) -> None:
        code, payload = code_reference(), payload_reference()
        if code is None or payload is None or is_finalizing():  # at the end of the process this module may be empty
            return
        for entry in treadle_frame.entries(code):
            if entry.payload is payload and treadle_frame.remove_entry(code, entry):
                remember(DroppedEntry.of(entry))

    return tuple(weakref.ref(obj, drop) for obj in objects)


__all__ = ["DroppedEntry", "dropped_with"]
