"""Attributes of modules that the traced program writes are read as written, by name and by attribute."""

from __future__ import annotations

import sys
import types

import torch
from compile_runs import compiled

other = types.ModuleType("other")
here = sys.modules[__name__]
number = 1


def test_a_module_attribute_is_read_as_written():
    def program(x):
        other.number = 5
        return x + other.number

    other.number = 1
    fast, recorder = compiled(program)
    for _ in range(2):
        other.number = 1
        assert fast(torch.zeros(1)).item() == 5 and other.number == 5
    assert recorder.codes() == []


def test_a_global_of_the_function_is_written_through_its_module():
    def program(x):
        global number
        here.number = 5
        y = x + number
        number = 7
        return y + here.number * 10

    fast, recorder = compiled(program)
    for _ in range(2):
        here.number = 1
        assert fast(torch.zeros(1)).item() == 75 and number == 7
    assert recorder.codes() == []
