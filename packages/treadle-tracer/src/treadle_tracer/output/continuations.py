"""The continuations of traced functions: made once per place and layout, and found again by their code."""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from types import CodeType

from torch.utils.weak import WeakIdKeyDictionary

import treadle_frame

from ..bytecode import CodeModel, SlotKind
from ..bytecode.splice import Continuation, continuation, restart_index, resumed_call
from ..errors import InternalError

_Key = tuple[int, tuple[str, ...], tuple[SlotKind, ...], bool, CodeType | None]


class Family:
    """The continuations of one function, one per place and layout, so that recompiled frames share them and their entries.

    A family lives as long as the function's code. The continuations, their entries and the parameters in those entries' graphs die with it.

    skipped   the hook leaves the function alone, and so its continuations
    """

    def __init__(self, code: CodeType, model: CodeModel, skipped: bool):
        self.code = weakref.ref(code)
        self.model = model
        self.skipped = skipped
        self.made: dict[_Key, Continuation] = {}

    def member(
        self, index: int, names: tuple[str, ...], kinds: tuple[SlotKind, ...], *, called: bool = False
    ) -> Continuation:
        """The continuation from `index` on with these variables and this stack. called: see `_Known`."""
        index = restart_index(self.model, index)
        key = (index, names, kinds, called, None)
        if key not in self.made:
            made = continuation(self.model, index, variables=names, stack=kinds)
            self._add(key, made, called, None, _in_loop(self.model, index))
        return self.made[key]

    def resumed_call(
        self, index: int, names: tuple[str, ...], kinds: tuple[SlotKind, ...], inner: CodeType, *, called: bool = False
    ) -> Continuation:
        """The function in the middle of its call `index`, for a call of the continuation `inner` in its place.

        There is one for each innermost continuation, so that breaks at different places below a call do not share entries. It is the
        innermost that counts, so that a function that calls itself has no more of them the deeper it is.
        """
        below = _known[inner]
        innermost = below.innermost or inner
        key = (index, names, kinds, called, innermost)
        if key not in self.made:
            made = resumed_call(self.model, index, variables=names, stack=kinds)
            in_loop = below.in_loop or _in_loop(self.model, index)
            self._add(key, made, called, innermost, in_loop)
        return self.made[key]

    def _add(self, key: _Key, made: Continuation, called: bool, innermost: CodeType | None, in_loop: bool) -> None:
        if called:
            # The name of a local function: as such it is made anew in every call, and guards ask for its code, not for its identity.
            qualname = f"{self.model.qualname}.<locals>.{self.model.name}"
            made = replace(made, code=made.code.replace(co_qualname=qualname))
        self.made[key] = made
        _known[made.code] = _Known(weakref.ref(self), made.origin, made.call, called, innermost, in_loop)
        if self.skipped:
            treadle_frame.skip(made.code)


@dataclass(frozen=True)
class _Known:
    """What is known of a continuation. It does not refer to the code of the continuation, which is its key.

    family     the family it belongs to
    origin     for each of its instructions the index in the original function, -1 for an added one
    call       the instruction at which it calls what it was given, -1 if there is none
    called     a continuation of the caller calls it, as the caller has called the function; so it returns what the function returns
    innermost  of a resumed call: the continuation at the end of the chain of calls that are resumed
    in_loop    it may be called once per turn of a loop
    """

    family: weakref.ref[Family]
    origin: tuple[int, ...]
    call: int
    called: bool
    innermost: CodeType | None
    in_loop: bool


_families: MutableMapping[CodeType, Family] = WeakIdKeyDictionary()
_known: MutableMapping[CodeType, _Known] = WeakIdKeyDictionary()


def forget_continuations() -> None:
    """Make new continuations from now on, as after a reset of all caches."""
    _families.clear()


def is_continuation(code: CodeType) -> bool:
    """Whether the code is a continuation of a compiled frame, so that a `NextContinuation` may be returned to its caller."""
    known = _known.get(code)
    return known is not None and not known.called


def resumed_call_at(code: CodeType) -> int:
    """The instruction at which a continuation calls what it was given; -1 for all other code."""
    known = _known.get(code)
    return -1 if known is None else known.call


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
        family = _families[code] = Family(code, model, treadle_frame.is_skipped(code))
    return family


def original_of(code: CodeType) -> CodeType | None:
    """The function that a continuation belongs to, None when it is gone; other code belongs to itself."""
    known = _known.get(code)
    if known is None:
        return code
    family = known.family()
    return None if family is None else family.code()


def continuations_of(code: CodeType) -> list[CodeType]:
    """The continuations of a function."""
    family = _families.get(code)
    return [] if family is None else [made.code for made in family.made.values()]


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
