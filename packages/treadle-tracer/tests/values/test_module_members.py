"""Parameters, buffers and submodules of an outside module that a function registers, assigns and deletes stand where eager has them."""

from __future__ import annotations

import collections
import importlib
import os
import subprocess
import sys

import pytest
import torch
from compile_runs import compiled
from torch import nn


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("total", torch.zeros(3))


def registered_and_assigned(module, x):
    module.register_buffer("late", x.sum())
    module.late = x.sum() + 1
    return x


def a_parameter_assigned_none(module, x):
    module.register_parameter("late", nn.Parameter(x.detach()))
    module.late = None
    return x


def an_empty_buffer_assigned(module, x):
    module.register_buffer("late", None)
    module.late = x + 1
    return x


def a_submodule_replaced(module, x):
    module.add_module("late", nn.Identity())
    module.late = nn.ReLU()
    return module.late(x)


def two_buffers_and_an_attribute(module, x):
    module.late = x
    module.register_buffer("other", x)
    module.other = x + 1
    del module.late
    return x


def written_to_the_dict(module, x):
    module._buffers["late"] = x
    module.late = x + 2
    return x


def read_between(module, x):
    module.register_buffer("late", x + 1)
    y = module.late
    module.late += 1
    return y + module.late


def deleted_and_assigned(module, x):
    module.steps = x + 1
    del module.steps
    module.steps = x + 2
    return x


def no_tensor_for_a_new_buffer(module, x):
    module.register_buffer("late", x)
    try:
        module.late = 3
    except TypeError as error:
        return x, str(error)


def both_buffers(module, x):
    module.steps = module.steps + 1
    module.total = module.total + x
    return x


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__module__", "") == __name__ and hasattr(f, "__code__")]


def shown(module):
    buffers = {name: None if value is None else value.tolist() for name, value in module._buffers.items()}
    modules = {name: type(value) for name, value in module._modules.items()}
    return sorted(vars(module)), buffers, list(module._parameters), modules, sorted(module._non_persistent_buffers_set)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_members(program):
    run, _ = compiled(program)
    mine, theirs = Counter(), Counter()
    for step in range(3):
        told = []
        for function, module in ((run, mine), (program, theirs)):
            try:
                told.append(str(function(module, torch.ones(3) * step)))
            except (KeyError, AttributeError) as error:
                told.append(str(error))
        assert told[0] == told[1] and shown(mine) == shown(theirs)


def test_buffers_assigned_in_every_call_do_not_recompile():
    run, said = compiled(both_buffers)
    module = Counter()
    for _ in range(6):
        run(module, torch.ones(3))
    assert (module.steps.item(), module.total.tolist()) == (6, [6, 6, 6]) and len(said.graphs) <= 2


def test_a_module_of_torch_that_is_not_loaded_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.utils.show_pickle", raising=False)

    def run(x):
        from torch.utils.show_pickle import DumpUnpickler

        return x + len(DumpUnpickler.__name__)

    fn, recorder = compiled(run)
    x = torch.ones(2)
    assert torch.equal(fn(x), run(x))
    assert len(recorder.graphs) == 1 and not recorder.breaks


@pytest.mark.parametrize(
    ("name", "package"),
    [("torch.utils.show_pickle", None), (".show_pickle", "torch.utils"), (".missing", "torch.utils")],
)
def test_import_module(name, package, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.utils.show_pickle", raising=False)

    def run(x):
        try:
            return x + len(importlib.import_module(name, package).__name__)
        except ImportError as error:
            return x - len(str(error))

    fn, recorder = compiled(run)
    x = torch.ones(2)
    assert torch.equal(fn(x), run(x))
    assert len(recorder.graphs) == 1 and not recorder.breaks


def test_submodules_that_a_module_loads_when_it_is_asked_for_them():
    """In a process of its own: they stay loaded. `torch._dynamo` is one."""
    program = """
import torch
from compile_runs import compiled

def run(x):
    torch._dynamo.mark_static(x, 0)
    return x + 1

fn, recorder = compiled(run)
x = torch.ones(2)
assert torch.equal(fn(x), x + 1)
assert len(recorder.graphs) == 1 and not recorder.breaks, recorder.breaks
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


class Counting(collections.OrderedDict):
    looked_up = 0

    def __getitem__(self, key):
        Counting.looked_up += 1
        return super().__getitem__(key)


def test_dicts_of_members_that_look_up_in_their_own_way():
    """As DeepSpeed's, which gathers parameters there."""
    found = []
    for is_compiled in (False, True):
        module = nn.Linear(2, 3)
        module._parameters = Counting(module._parameters)
        Counting.looked_up = 0
        run, recorder = compiled(lambda x, module=module: module(x)) if is_compiled else (module, None)
        counts = []
        for _ in range(3):
            run(torch.ones(1, 2))
            counts.append(Counting.looked_up)
        found.append(counts)
    assert found[0] == found[1] == [2, 4, 6]
    assert not recorder.breaks and not recorder.skips
