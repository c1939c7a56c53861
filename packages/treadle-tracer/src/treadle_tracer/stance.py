"""How calls of compiled functions that no entry serves are treated, for the whole process."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from .errors import RecompileRefused

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Stance = Literal["default", "force_eager", "eager_on_recompile", "fail_on_recompile"]
"""
default             compile
force_eager         run every call in Python; entries are kept for later
eager_on_recompile  compile the first call of a function; a call that its entries do not serve runs in Python
fail_on_recompile   compile the first call of a function; a call that its entries do not serve raises RecompileRefused
"""


class HasEntries(Protocol):
    """A handler, which can take the entries of its code objects away and give them back."""

    def set_entries_aside(self) -> None:
        """Take them away."""

    def restore_entries(self) -> None:
        """Give them back."""


_handlers: weakref.WeakSet[HasEntries] = weakref.WeakSet()
_current: Stance = "default"


def register(handler: HasEntries) -> None:
    """Let the handler follow the stance."""
    _handlers.add(handler)


def current() -> Stance:
    """The stance in force."""
    return _current


def set_stance(stance: Stance) -> AbstractContextManager[None]:
    """Set how calls are treated that no entry serves, from now on: see `Stance`.

    The result is a context manager whose end sets the stance of before. Raises ValueError for another name.
    """
    before = _current
    _set(stance)

    @contextmanager
    def until_end() -> Iterator[None]:
        try:
            yield
        finally:
            _set(before)

    return until_end()


def _set(stance: Stance) -> None:
    global _current
    if stance not in get_args(Stance):
        raise ValueError(f"stance must be one of {', '.join(get_args(Stance))}, not {stance!r}")
    was, _current = _current, stance
    for handler in list(_handlers):
        if stance == "force_eager" != was:
            handler.set_entries_aside()
        elif was == "force_eager" != stance:
            handler.restore_entries()


def check_recompile(name: str, reason: str) -> bool:
    """Whether a function that has entries may get one more; raises RecompileRefused where the user has asked for that."""
    if _current == "fail_on_recompile":
        raise RecompileRefused(f"{name} would be compiled again: {reason}")
    return _current != "eager_on_recompile"
