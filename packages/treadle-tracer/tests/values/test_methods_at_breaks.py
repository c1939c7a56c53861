"""Methods implemented in C that break the graph: the replacement binds the very descriptor that the trace has found."""

from __future__ import annotations

import re

import pytest
import torch
from compile_runs import compiled

PATTERN = re.compile("x+")


def of_an_outside_object(x):
    return x + 1, [match.span() for match in PATTERN.finditer("axxbx", 1)]


def of_an_object_made_inside(x):
    pattern = re.compile("x*")
    return x + 1, pattern.scanner("axb").match().span()


def kept_before_it_is_called(x):
    find = PATTERN.finditer
    y = x + 1
    return y, len(list(find("axb")))


@pytest.mark.parametrize("program", [of_an_outside_object, of_an_object_made_inside, kept_before_it_is_called])
def test_a_method_that_wants_its_class(program):
    """CPython crashes where such a method (METH_METHOD) is bound without a type."""
    run, said = compiled(program)
    for _ in range(2):
        (a, *rest), (b, *expected) = run(torch.ones(2)), program(torch.ones(2))
        assert torch.equal(a, b) and rest == expected
    assert said.breaks
