"""The continuations of traced functions: made once per place and layout, and found again by their code."""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from dataclasses import dataclass
from types import CodeType

from torch.utils.weak import WeakIdKeyDictionary

import treadle_frame

from ..bytecode import CodeModel, SlotKind
from ..bytecode.splice import Continuation, continuation, restart_index
from ..errors import InternalError

_Key = tuple[int, tuple[str, ...], tuple[SlotKind, ...]]


class Family:
    """The continuations of one function, one per place and layout, so that recompiled frames share them and their entries.

    A family lives as long as the function's code. The continuations, their entries and the parameters in those entries' graphs die with it.

    skipped   the hook leaves the function alone, and so its continuations
    """

    def __init__(self, model: CodeModel, skipped: bool):
        self.model = model
        self.skipped = skipped
        self.made: dict[_Key, Continuation] = {}

    def member(self, index: int, names: tuple[str, ...], kinds: tuple[SlotKind, ...]) -> Continuation:
        """The continuation from `index` on with these variables and this stack."""
        key = (restart_index(self.model, index), names, kinds)
        if key not in self.made:
            made = self.made[key] = continuation(self.model, index, variables=names, stack=kinds)
            known = _Known(weakref.ref(self), made.origin, _in_loop(self.model, key[0]))
            _known[made.code] = known
            if self.skipped:
                treadle_frame.skip(made.code)
        return self.made[key]


@dataclass(frozen=True)
class _Known:
    """What is known of a continuation.

    family   the family it belongs to
    origin   for each of its instructions the index in the original function, -1 for an added one
    in_loop  it may be called once per turn of a loop
    """

    family: weakref.ref[Family]
    origin: tuple[int, ...]
    in_loop: bool


_families: MutableMapping[CodeType, Family] = WeakIdKeyDictionary()
_known: MutableMapping[CodeType, _Known] = WeakIdKeyDictionary()


def forget_continuations() -> None:
    """Make new continuations from now on, as after a reset of all caches."""
    _families.clear()


def is_continuation(code: CodeType) -> bool:
    """Whether the code is a continuation, so that an `Onward` may be returned to its caller."""
    return code in _known


def starts_in_loop(code: CodeType) -> bool:
    """Whether the code is a continuation that may be called once per turn of a loop."""
    known = _known.get(code)
    return known is not None and known.in_loop


def family_of(code: CodeType, model: CodeModel) -> Family | None:
    """The family of a continuation (None when its function is gone) or of an original function."""
    known = _known.get(code)
    if known is not None:
        return known.family()
    family = _families.get(code)
    if family is None:
        family = _families[code] = Family(model, treadle_frame.is_skipped(code))
    return family


def index_in_original(code: CodeType, model: CodeModel, index: int) -> int:
    """The index in the original function of an instruction of a function or continuation; -1 for an added instruction."""
    known = _known.get(code)
    if known is None:
        return index
    if len(known.origin) != len(model.instructions):
        raise InternalError("resume", f"a continuation of {model.qualname} was read back with another length")
    return known.origin[index]


def _in_loop(model: CodeModel, index: int) -> bool:
    """Whether the instruction may run again after itself: a later jump goes back to it or before it."""
    return any(
        instruction.target is not None and instruction.target <= index for instruction in model.instructions[index:]
    )
