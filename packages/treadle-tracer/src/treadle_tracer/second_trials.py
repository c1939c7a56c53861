"""Judge a function that keeps its graphs once more, by calls that compile nothing (`unprofitable`).

    first trial     judges the call that has compiled the pieces. What was dropped within it (a number was a constant until it changed) has
                    run for nothing and is not counted: of 34 turns of a loop, 15
    second trial    judges the next calls, by the runs since the first

The entry that serves these calls has a check that fails after the last of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import treadle_frame

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = 3


class SecondTrial:
    """What had run when the first trial ended.

    spent: what decisions had cost. is_due: the calls to judge have come. is_over: they have been judged, or others have been compiled.
    """

    def __init__(self, pieces: Sequence[Any], spent: float):
        self.spent = spent
        self.is_due = self.is_over = False
        self._runs = [(piece, piece.hits) for piece in pieces]  # these keep their identities
        self._entry: Any = None
        self._watched: Any = None

    def runs_of(self, piece: Any) -> int:
        """How often the piece has run since. The call that has compiled it is no hit."""
        before = next((hits for known, hits in self._runs if known is piece), -1)
        return int(piece.hits - before)

    def watch(self, entry: Any) -> Any:
        """An entry like this one, whose guard fails when the trial is due, until `end` is called."""
        check = treadle_frame.Check(
            (("const", None),), "call", _until_due(weakref.ref(self)), f"it runs {_CALLS} times"
        )
        program = treadle_frame.GuardProgram([*entry.guard.checks, check])
        self._entry, self._watched = entry, treadle_frame.Entry(entry.code, program, entry.payload)
        return self._watched

    def end(self) -> None:
        self.is_over = True

    def unwatched(self, entry: Any) -> Any:
        """The entry that was there before."""
        return self._entry if entry is self._watched else entry


def _until_due(trial: weakref.ref[SecondTrial]) -> Callable[[Any], bool]:
    """A guard callable, which fails from a call on until the trial is over. The trial holds the entry that has it."""
    calls = 0

    def check(_: Any) -> bool:
        nonlocal calls
        calls += 1
        known = None if calls < _CALLS else trial()
        if known is None or known.is_over:
            return True
        known.is_due = True
        return False

    return check


__all__ = ["SecondTrial"]
