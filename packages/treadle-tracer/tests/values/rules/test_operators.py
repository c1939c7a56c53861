"""`round`, `divmod` and `pow` of objects whose classes say what they are."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


class Money:
    def __init__(self, cents):
        self.cents = cents

    def __round__(self, digits=None):
        return round(self.cents / 100) if digits is None else Money(round(self.cents, digits - 2))

    def __divmod__(self, other):
        return (self.cents // other, self.cents % other) if isinstance(other, int) else NotImplemented

    def __rdivmod__(self, other):
        return other // self.cents, other % self.cents

    def __pow__(self, other):
        return self.cents**other


class Plain:
    pass


PROGRAMS = {
    "round": lambda m: round(m),
    "round to digits": lambda m: round(m, 1).cents,
    "round by name": lambda m: round(number=m, ndigits=1).cents,
    "round to none": lambda m: round(m, None),
    "divmod": lambda m: divmod(m, 7)[1],
    "reflected divmod": lambda m: divmod(5000, m)[0],
    "pow": lambda m: pow(m, 2),
}
ERRORS = {
    "round": lambda m: round(Plain()),
    "divmod of one class": lambda m: divmod(m, m),
    "divmod": lambda m: divmod(Plain(), 2),
    "pow": lambda m: pow(Plain(), 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name):
    operation = PROGRAMS[name]

    def program(x, m):
        return x * operation(m)

    fast, recorder = compiled(program)
    for cents in (1234, 1267):
        x = torch.ones(2)
        torch.testing.assert_close(fast(x, Money(cents)), program(x, Money(cents)))
    assert not recorder.breaks


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    def program(x, m):
        return x * ERRORS[name](m)

    fast, _ = compiled(program)
    with pytest.raises(TypeError) as expected:
        program(torch.ones(2), Money(3))
    with pytest.raises(TypeError) as found:
        fast(torch.ones(2), Money(3))
    assert str(found.value) == str(expected.value)
