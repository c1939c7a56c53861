"""Exceptions for wrong use of treadle. Their messages name what was given, what is allowed, and the closest match."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TreadleWarning(UserWarning):
    """Treadle runs something in eager, or slower than asked. The message says what, where and why."""


class UnknownName(ValueError):
    """There is no option, mode, backend or log of that name."""


class WrongUse(TypeError):
    """An argument has a type that cannot be used."""


class OptionValue(ValueError):
    """An option cannot have this value."""


def unknown_name(kind: str, given: object, allowed: Iterable[str], hint: str = "") -> UnknownName:
    """The error for an unknown `kind` ("backend", "mode", ...), naming what is allowed and the closest match."""
    names = sorted(allowed)
    close = difflib.get_close_matches(str(given), names, n=1)
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    return UnknownName(f"unknown {kind} {given!r}{meant}; allowed: {', '.join(map(repr, names))}{hint}")
