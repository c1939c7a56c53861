"""Which decisions over tensors without dimensions are computed on numbers of Python, and that they come out as on tensors."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch

from treadle_tracer.decided import Decided
from treadle_tracer.decision_programs import Calls, Decision, programs_of
from treadle_tracer.decisions_on_numbers import compiled_on_numbers
from treadle_tracer.source import LocalSource

PLACE = ("file.py", 1, "f", 0)


def program_of(function, count, read=bool, outcome=True):
    """The program of one decision on what a function of `count` outside objects gives."""
    nodes = list(torch.fx.symbolic_trace(function).graph.nodes)
    calls = Calls()
    results, needed = calls.add(
        {node: n for n, node in enumerate(nodes[:count])}, nodes[count:-1], nodes[-1].all_input_nodes, False
    )
    (program,) = programs_of(calls.made, [Decision(PLACE, results, read, outcome, needed)], ["scalar"] * count)
    return program


INT, DOUBLE, FLOAT, BOOL = torch.int64, torch.float64, torch.float32, torch.bool


@pytest.mark.parametrize(
    "function, dtypes",
    [
        (lambda t: t - 50 >= 0, [INT]),
        (lambda t: t * 3 + 1 == 22, [INT]),
        (lambda t: 5 < t, [INT]),
        (lambda t: 100 - t > 0, [INT]),
        (lambda a, b: a - b < a * b, [INT, INT]),
        (lambda a, b: torch.lt(a, b), [INT, INT]),
        (lambda a, b: a.gt(b), [FLOAT, FLOAT]),
        (lambda t: t < 0.1, [FLOAT]),
        (lambda t: t == 0.1, [FLOAT]),
        (lambda t: t <= 3, [FLOAT]),
        (lambda t: t != 7, [torch.int32]),
        (lambda t: t < 0.1, [DOUBLE]),
        (lambda a, b: a * b - 1.5 > a + b, [DOUBLE, DOUBLE]),
        (lambda a, b: torch.logical_and(a < 2, b >= 0), [INT, FLOAT]),
        (lambda t: t, [BOOL]),
        (lambda t: t, [FLOAT]),
        (lambda t: t.item() - 3 < 2, [INT]),
    ],
)
def test_they_come_out_as_on_tensors(function, dtypes):
    program = program_of(function, len(dtypes))
    on_numbers, on_tensors = compiled_on_numbers(program, dtypes), program.compiled()
    assert on_numbers is not None
    numbers = (-1e30, -3.0, -0.0, 0.0, 0.1, 0.7, 3.0, 7.0, 50.0, 99.5, float("inf"), float("nan"))
    for given in itertools.product(numbers, repeat=len(dtypes)):
        if any(not d.is_floating_point and abs(g) > 1e6 or g != g for d, g in zip(dtypes, given, strict=True)):
            given = tuple(g if d.is_floating_point else 4 for d, g in zip(dtypes, given, strict=True))
        tensors = [torch.tensor(g).to(dtype) for g, dtype in zip(given, dtypes, strict=True)]
        assert on_numbers(*(tensor.item() for tensor in tensors)) == on_tensors(*tensors), given


@pytest.mark.parametrize(
    "function, dtypes",
    [
        (lambda t: t + 1 > 5, [FLOAT]),  # rounded
        (lambda t: t + 1 > 5, [torch.int8]),  # wraps around
        (lambda t: t < 0.5, [INT]),  # compared as float32
        (lambda t: t > 300, [torch.uint8]),
        (lambda t: t / 2 > 5, [DOUBLE]),
        (lambda t: t.sqrt() > 5, [DOUBLE]),
        (lambda t: t > 5, [None]),
        (lambda t: t == float("inf"), [FLOAT]),
        (lambda a, b: a < b, [INT, DOUBLE]),
        (lambda a, b: a < b, [INT, int]),
        (lambda t: torch.add(t, 1, alpha=2) > 5, [INT]),
    ],
)
def test_others_are_left_to_tensors(function, dtypes):
    assert compiled_on_numbers(program_of(function, len(dtypes)), dtypes) is None


def test_what_leaves_64_bits_is_left_to_tensors():
    on_numbers = compiled_on_numbers(program_of(lambda t: t * t > 0, 1), [INT])
    assert on_numbers is not None
    assert on_numbers(1 << 30) == 1 and on_numbers(1 << 40) is None


def test_a_number_that_is_read_is_the_same_number():
    program = program_of(lambda t: t, 1, operator.index, 7)
    on_numbers = compiled_on_numbers(program, [INT])
    assert on_numbers is not None and on_numbers(7) == 1 and on_numbers(8) == 0
    assert compiled_on_numbers(program, [BOOL]) is None


def test_the_guard_asks_numbers_and_costs_less():
    nodes = list(torch.fx.symbolic_trace(lambda t: t - 50 >= 0).graph.nodes)
    decided, timestep = Decided(), torch.tensor(70)
    position = decided.read(LocalSource("t"), timestep)
    results, needed = decided.calls.add({nodes[0]: position}, nodes[1:-1], nodes[-1].all_input_nodes, False)
    decided.add(Decision(PLACE, results, bool, True, needed))
    assert decided.cost < 1
    assert [decided(torch.tensor(n)) for n in (70, 50, 49, -(1 << 63), 90)] == [True, True, False, True, True]
