"""Attributes of OrderedDicts in compiled functions."""

from __future__ import annotations

import collections
import copy

import pytest
import torch
from compile_runs import compiled

OUTSIDE = collections.OrderedDict(a=1)
OUTSIDE.scale = 5  # type: ignore[attr-defined]
PLAIN = collections.OrderedDict(a=1)
MODEL = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()


def of_an_outside_one(x):
    return x + OUTSIDE.scale, hasattr(OUTSIDE, "none"), getattr(OUTSIDE, "none", 3)


def of_one_made_inside(x):
    made = collections.OrderedDict(a=1)
    made.scale = 2
    return x * made.scale, hasattr(made, "none"), made == {"a": 1}, hasattr(made.copy(), "scale")


def leave_with_it(x):
    made = collections.OrderedDict(a=x)
    made.parts = collections.OrderedDict()
    made.parts.of = made
    made.total = x + 1
    return made


def a_state_dict(x):
    state = MODEL.state_dict()
    return MODEL(x.expand(2, 2)), sum(value.sum() for value in state.values()), list(state)


def a_state_dict_that_leaves(x):
    return MODEL.state_dict()


def of_a_plain_copy(x):
    return x + 1, copy.copy(PLAIN), hasattr(PLAIN, "scale")


def of_copies(x):
    made = collections.OrderedDict(a=1)
    made.scale = 2
    return x, copy.copy(made), copy.deepcopy(OUTSIDE)


def deleted(x):
    made = collections.OrderedDict()
    made.scale = 2
    del made.scale
    return x + hasattr(made, "scale")


def of_a_dict(x):
    try:
        {}.scale = 2
    except AttributeError as error:
        return x, str(error)


WHOLE = (
    of_an_outside_one,
    of_one_made_inside,
    leave_with_it,
    a_state_dict,
    a_state_dict_that_leaves,
    of_a_plain_copy,
)


def _plain(value, seen=()):
    if any(value is other for other in seen):
        return "itself"
    if isinstance(value, collections.OrderedDict):
        seen = (*seen, value)
        return [
            (list(part), [_plain(item, seen) for item in part.values()])
            for part in (collections.OrderedDict(value), vars(value))
        ]
    if isinstance(value, (tuple, list)):
        return [_plain(item, seen) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("program", (*WHOLE, of_copies, deleted, of_a_dict), ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    for _ in range(2):
        assert _plain(run(torch.ones(2))) == _plain(program(torch.ones(2)))
    assert bool(said.breaks or said.skips) == (program not in WHOLE)


def test_an_attribute_that_changes():
    def program(x, state):
        return x + getattr(state, "scale", 0)

    run, _ = compiled(program)
    state = collections.OrderedDict()
    for scale in (None, 2, 3):
        if scale is not None:
            state.scale = scale  # type: ignore[attr-defined]
        assert run(torch.ones(2), state).tolist() == program(torch.ones(2), state).tolist()
