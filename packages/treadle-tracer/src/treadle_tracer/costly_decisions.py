"""Decisions on numbers of tensors that cost more than the graph around them saves are no longer made.

    while err > tol:               # err is computed anew in each turn: deciding takes as long as the turn itself
        x, err = step(x)

A decision pays where the numbers that it reads seldom change, because then its guard computes nothing. Where they change in every call,
the guard makes the calls of the graph again, in eager. `decided.Decided` counts what that costs (`is_costly`). Such an entry is dropped,
and the lines of its costly decisions are remembered: the next trace breaks there, or has the graph check what it relies on. So do the
continuations of the function and the functions that it calls in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import treadle_frame

from .decision_programs import Line
from .output.continuations import original_of

if TYPE_CHECKING:
    from .code_state import CodeState

_StateOf = Callable[[CodeType], "CodeState"]


def drop_costly(code: CodeType, state_of: _StateOf) -> None:
    """Drop the entries of `code` whose decisions have cost too much, and those that decide at the same lines."""
    entries = treadle_frame.entries(code)
    lines = {
        line for entry in entries if entry.payload.decided.is_costly for line in entry.payload.decided.costly_lines()
    }
    if not lines:
        return
    _remember(code, lines, state_of)
    for entry in entries:
        if not lines.isdisjoint(entry.payload.decided.lines):
            treadle_frame.remove_entry(code, entry)


def give_up_deciding(code: CodeType, pieces: Sequence[Any], state_of: _StateOf) -> bool:
    """Remember the lines of the costly decisions of these entries, the pieces of `code`; whether a line was not known before."""
    lines = {line for piece in pieces for line in piece.payload.decided.costly_lines()}
    is_new = not lines <= undecided_lines(code, state_of)
    _remember(code, lines, state_of)
    return is_new


def undecided_lines(code: CodeType, state_of: _StateOf) -> set[Line]:
    """The lines at which a trace of `code` decides nothing. Those that call it in place know of its lines, too."""
    return set[Line]().union(*(state_of(function).undecided for function in _functions_with(code, state_of)))


def _remember(code: CodeType, lines: Iterable[Line], state_of: _StateOf) -> None:
    state_of(original_of(code) or code).undecided.update(lines)


def _functions_with(code: CodeType, state_of: _StateOf) -> list[CodeType]:
    """The function that `code` is a piece of, and those that call it in place."""
    found, seen = [original_of(code) or code], set[int]()
    for function in found:
        if id(function) not in seen:
            seen.add(id(function))
            found += list(state_of(function).called_in)
    return found


__all__ = ["drop_costly", "give_up_deciding", "undecided_lines"]
