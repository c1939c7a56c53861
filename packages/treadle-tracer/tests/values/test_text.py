"""Texts of values: `ascii` and `!a`."""

from __future__ import annotations

from compile_runs import check_program


class Umlaut:
    def __repr__(self):
        return "ä"


def escaped(x):
    return x + 1, ascii("é"), ascii(["é", Umlaut()]), f"{Umlaut()!a}", repr("é")


def test_ascii():
    check_program(escaped, lambda found: (found[0].tolist(), *found[1:]), is_whole=True)
