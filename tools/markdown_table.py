"""Markdown tables, and the format of numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MISSING = "–"


def number(value: float | None, digits: int = 1, scale: float = 1.0) -> str:
    return MISSING if value is None else f"{value * scale:.{digits}f}"


def times(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{value:.{digits}f} ×"


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
