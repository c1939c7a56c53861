"""Members of enums that are strings or ints, with methods of the program: what an operator calls counts, and what it does not call not."""

from __future__ import annotations

import enum

import pytest
import torch
from compile_runs import compiled


class Mode(str, enum.Enum):
    FIRST = "a"
    SECOND = "c"

    def __str__(self):
        return self.value

    def __repr__(self):
        return "<" + self.value + ">"


class Level(int, enum.Enum):
    LOW = 1
    HIGH = 3

    def __format__(self, spec):
        return "level " + str(int(self))


PROGRAMS = {
    "==": lambda m, n: (m == "a", m != "a", "a" == m, m == Mode.FIRST, Mode.SECOND == m, m == n),
    "in": lambda m, n: (m in ("a", "b"), m in (Mode.FIRST,), m in ["c"], "a" in {m: 1}),
    "<": lambda m, n: (m < "b", m <= "a", "b" > m, sorted([Mode.SECOND, m]) == ["a", "c"], n < 2, n >= Level.HIGH),
    "+": lambda m, n: (m + "x", m * 2, n + 1, 2 - n, n * 2.5, -n),
    "text": lambda m, n: (str(m), f"{m}", f"{m!r}", f"{n}", "%s" % m, "%d" % n, m.upper(), m.startswith("a"), len(m)),
    "keys": lambda m, n: (
        {Mode.FIRST: 3}.get(m),
        {"a": 3}.get(m),
        {m: 4}.get("a"),
        hash(m) == hash(m.value),
        {1: 2}.get(n),
    ),
    "lookup": lambda m, n: (Mode(m) is m, Level(n) is n, Mode(Mode("c")).value, Level(Level.HIGH).name),
    "made": lambda m, n: (Mode("a") == m, Mode(m.value) is m, Level(int(n)) is n, isinstance(m, str), m.name, n.value),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_on_members(name):
    ask = PROGRAMS[name]

    def program(x, m, n):
        return x + 1, ask(m, n)

    run, said = compiled(program)
    for m, n in [(Mode.FIRST, Level.LOW), (Mode.SECOND, Level.HIGH)] * 2:
        assert run(torch.ones(2), m, n)[1] == program(torch.ones(2), m, n)[1]
    if name != "text":
        assert not said.breaks


@pytest.mark.parametrize("method", ["__eq__", "__ne__", "__lt__", "__gt__", "__hash__", "__add__", "__str__"])
def test_a_method_that_comes_later_is_called(method):
    class Own(str, enum.Enum):
        A = "a"

        def __repr__(self):
            return "own"

    def program(x):
        m = Own.A
        return x + 1, m == "a", m != "a", m < "b", "b" > m, m + "x", hash(m) == hash("a"), str(m)

    run, _ = compiled(program)
    assert run(torch.ones(2))[1:] == program(torch.ones(2))[1:]
    answer = {"__hash__": 5, "__str__": "changed"}.get(method, "other")
    setattr(Own, method, lambda *args: answer)
    assert run(torch.ones(2))[1:] == program(torch.ones(2))[1:]
    delattr(Own, method)
    assert run(torch.ones(2))[1:] == program(torch.ones(2))[1:]


def test_a_lookup_calls_the_methods_of_a_value_of_another_class():
    class Key(str, enum.Enum):
        A = "a"

        def __hash__(self):
            return hash(answers[0])

        def __eq__(self, other):
            return other == answers[0]

    def program(x):
        return x + (1 if Mode(Key.A) is Mode.FIRST else 2)

    answers = ["a"]
    run, _ = compiled(program)
    for answers[0] in "aca":
        assert torch.equal(run(torch.ones(2)), program(torch.ones(2)))


class _Comparing(enum.EnumMeta):
    """A metaclass with special methods of its own, as kornia's enums have."""

    def __contains__(cls, other):
        return any(member.name == other for member in cls)

    def __repr__(cls):
        return " | ".join(member.name for member in cls)


class _Folding(enum.EnumMeta):
    def __getitem__(cls, name):
        return super().__getitem__(name.upper())


class _Mode(enum.Enum, metaclass=_Comparing):
    NEAREST = 0
    BILINEAR = 1


class _Padding(enum.Enum, metaclass=_Folding):
    ZEROS = 2
    BORDER = 3


def _named(x, name):
    try:
        mode = _Mode[name.upper()]
    except KeyError as error:
        return x - 1, error.args
    return x + mode.value, _Padding["zeros"].value, _Padding["Border"] is _Padding.BORDER


def test_members_by_name_of_classes_with_methods_of_their_metaclass():
    fast, _ = compiled(_named, fullgraph=True)
    x = torch.ones(3)
    for name in ("nearest", "Bilinear", "cubic", "nearest"):
        found, expected = fast(x, name), _named(x, name)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
