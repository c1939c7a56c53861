"""Code objects that are made anew for every call, which no entry outlives.

    def forward(self, x):
        Outputs = namedtuple("Outputs", ["first", "second"])    # compiles the text of `__new__` in every call
        return Outputs(x.sin(), x.cos())                        # runs it once

A trace of such code serves one call and costs more than it could save. It is known by its copies that are gone.
"""

from __future__ import annotations

import collections
import weakref
from types import CodeType

_MOST_GONE = 2
"""So many copies of a code object may go before the next one is not traced."""
_MOST_TEXTS = 4096
"""Of which the copies are counted, so that a program that writes new code all the time does not fill the memory."""
_Text = tuple[str, str, int, int]


class ShortLivedCode:
    """Counts the copies of code objects that are gone."""

    def __init__(self) -> None:
        self._gone: collections.Counter[_Text] = collections.Counter()
        self._watched: dict[int, tuple[weakref.ref[CodeType], _Text]] = {}

    def watch(self, code: CodeType) -> None:
        """Count this code object when it goes. To be called once for each."""
        if len(self._gone) > _MOST_TEXTS:
            self._gone.clear()
        reference = weakref.ref(code, self._note)
        self._watched[id(reference)] = reference, _text(code)

    def holds(self, code: CodeType) -> bool:
        """Whether copies of this code were short-lived, so that this one is expected to be, too."""
        return bool(self._gone) and self._gone[_text(code)] >= _MOST_GONE

    def forget(self) -> None:
        """Forget what has gone."""
        self._gone.clear()

    def _note(self, reference: weakref.ref[CodeType]) -> None:
        """May be called in the middle of anything: by the garbage collector."""
        watched = self._watched.pop(id(reference), None)
        if watched is not None:
            self._gone[watched[1]] += 1


def _text(code: CodeType) -> _Text:
    """What equal code objects have in common."""
    return code.co_filename, code.co_qualname, code.co_firstlineno, hash(code)
