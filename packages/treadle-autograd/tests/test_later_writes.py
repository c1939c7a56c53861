"""Which views of an input are older than a change of it, and are read behind it."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_autograd.contract import CallInput, Contract, FreshOutput, Mutation
from treadle_autograd.later_writes import with_older_views


class Noting(fx.Interpreter):
    """Notes at each node of a graph what the trace of a program notes there."""

    def run_node(self, n):
        result = super().run_node(n)
        n.meta["example_value"] = result
        return result


def read_behind_the_change(x):
    turned = x.t()
    x.mul_(2)
    return turned.sin()


def returned_behind_the_change(x):
    turned = x.t()
    x.mul_(2)
    return turned


def one_of_several(x):
    parts = torch.chunk(x, 3)
    x.mul_(2)
    return parts[0].sin()


def changed_through_the_view(x):
    x[0].mul_(2)
    return x.sin()


def read_in_front_of_the_change(x):
    sine = x.t().sin()
    x.mul_(2)
    return sine


def made_behind_the_change(x):
    x.mul_(2)
    return x.t().sin()


def changed_often(x):
    return x.mul_(2).add_(1).sin()


OLDER = [read_behind_the_change, returned_behind_the_change, one_of_several]
OTHERS = [changed_through_the_view, read_in_front_of_the_change, made_behind_the_change, changed_often]


def has_older_views(program, *, has_history=True):
    gm = fx.symbolic_trace(program)
    with FakeTensorMode() as mode:
        Noting(gm).run(mode.from_tensor(torch.ones(3, 3)))
    mutation = Mutation(0, 1, has_history=has_history)
    contract = Contract((CallInput(0),), (mutation,), (FreshOutput(0),), ())
    (described,) = with_older_views(contract, gm).mutations
    return described.has_older_views


@pytest.mark.parametrize("program", OLDER, ids=lambda program: program.__name__)
def test_views_that_are_older_than_a_change(program):
    assert has_older_views(program)


@pytest.mark.parametrize("program", OTHERS, ids=lambda program: program.__name__)
def test_views_that_do_not_matter(program):
    assert not has_older_views(program)


def test_changes_that_autograd_does_not_record():
    assert not has_older_views(read_behind_the_change, has_history=False)
