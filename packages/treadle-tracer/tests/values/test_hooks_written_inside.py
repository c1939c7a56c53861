"""Hooks that a compiled function puts on modules from outside run in the calls behind that."""

from __future__ import annotations

import collections

import pytest
import torch
from compile_runs import compiled
from torch.nn.modules import module as module_machinery


class Plus(torch.nn.Module):
    def forward(self, x):
        return x + 1


MODULE = Plus()
LAYERS = torch.nn.Sequential(Plus(), Plus())


def doubled(module, args, result):
    return result * 2


def registered(x):
    handle = MODULE.register_forward_hook(doubled)
    y = MODULE(x)
    handle.remove()
    return y + MODULE(x)


def before_forward(x):
    handle = MODULE.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    y = MODULE(x)
    handle.remove()
    return y + MODULE(x)


def of_layers(x):
    seen = []
    handles = [layer.register_forward_hook(lambda module, args, result: seen.append(result)) for layer in LAYERS]
    y = LAYERS(x)
    for handle in handles:
        handle.remove()
    return [y, *seen]


def in_the_dict(x):
    MODULE._forward_hooks[77] = doubled
    y = MODULE(x)
    del MODULE._forward_hooks[77]
    return y + MODULE(x)


def another_dict(x):
    MODULE._forward_pre_hooks = collections.OrderedDict({1: lambda module, args: (args[0] * 5,)})
    y = MODULE(x)
    MODULE._forward_pre_hooks = collections.OrderedDict()
    return y


def of_all_modules(x):
    module_machinery._global_forward_hooks[3] = doubled
    y = MODULE(x)
    module_machinery._global_forward_hooks.clear()
    return y


def left_behind(x):
    MODULE._forward_hooks[5] = doubled
    return MODULE(x)


def other_members(x):
    LAYERS._modules = {"0": Plus()}
    try:
        return LAYERS(x)
    finally:
        LAYERS._modules = dict(ORIGINAL)


ORIGINAL = dict(LAYERS._modules)
PROGRAMS = (
    registered,
    before_forward,
    of_layers,
    in_the_dict,
    another_dict,
    of_all_modules,
    left_behind,
    other_members,
)


def _outcomes(run):
    found = []
    for _ in range(3):
        given = run(torch.ones(2))
        found.append([part.tolist() for part in (given if isinstance(given, list) else [given])])
        found.append(list(MODULE._forward_hooks) if run is not registered else [])
    MODULE._forward_hooks.clear()
    LAYERS._modules = dict(ORIGINAL)
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program):
    run, said = compiled(program)
    assert _outcomes(run) == _outcomes(program)
    assert bool(said.breaks or said.skips) == (program is other_members)
