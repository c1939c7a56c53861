"""What becomes of the entries of a function that has reached the limit of recompiles.

The function is compiled no more. Calls that its entries do not serve run in Python, and pay for the guards of all entries in vain: where no
call is like an earlier one, 0.25 ms for a function of 0.2 ms. So the next calls that no entry serves are counted, and then the entries
that have served none in the meantime are dropped; all of them, if the others have gained less than the guards have cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import treadle_frame

#: so many calls are served by no entry before it is decided
_CALLS = 32
#: what the guards of an entry cost a call that it does not serve, in calls of operators; an estimate
_GUARDS = 0.5


@dataclass(slots=True)
class BeyondLimit:
    """The calls since the limit was reached. hits: what each entry had served then, by its id; missed: calls that no entry has served."""

    hits: dict[int, int]
    missed: int = 0

    @classmethod
    def begin(cls, code: CodeType) -> BeyondLimit:
        return cls({id(entry): entry.hits for entry in treadle_frame.entries(code)})

    def miss(self, code: CodeType) -> bool:
        """Count a call that no entry has served. The result tells whether enough have been counted; useless entries are dropped then."""
        self.missed += 1
        if self.missed < _CALLS:
            return False
        entries = treadle_frame.entries(code)
        served = [entry.hits - self.hits.get(id(entry), 0) for entry in entries]
        for entry in _useless(entries, served, self.missed):
            treadle_frame.remove_entry(code, entry)
        return True


def _useless(entries: Sequence[Any], served: Sequence[int], missed: int) -> list[Any]:
    """The entries to drop, given how many calls each of them has served while so many were served by none."""
    unused = [entry for entry, times in zip(entries, served, strict=True) if times == 0]
    gains = [(entry.payload.profit, times) for entry, times in zip(entries, served, strict=True) if times > 0]
    if any(profit is None for profit, _ in gains):
        return unused
    gained = sum(profit * times for profit, times in gains)
    return list(entries) if gained < _GUARDS * len(gains) * missed else unused


__all__ = ["BeyondLimit"]
