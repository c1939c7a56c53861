"""Hooks that a compiled function registers on modules: those that it makes, and those from outside."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch import nn

OUTSIDE = nn.Linear(3, 3)


def removed(x):
    layer = nn.ReLU()
    handle = layer.register_forward_hook(lambda module, args, output: output + 3)
    result = layer(x)
    handle.remove()
    return result + layer(x)


def of_all_kinds(x):
    layer, seen = nn.ReLU(), []
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    with_kwargs = layer.register_forward_hook(lambda module, args, kwargs, output: output + 3, with_kwargs=True)
    first = layer.register_forward_hook(lambda module, args, output: seen.append(output), prepend=True)
    result = layer(x)
    for handle in (with_kwargs, first, first):
        handle.remove()
    return result + layer(x), seen, len(layer._forward_hooks), len(layer._forward_hooks_with_kwargs)


def in_a_with_statement(x):
    layer = nn.ReLU()
    with layer.register_forward_hook(lambda module, args, output: output * 2):
        result = layer(x)
    return result + layer(x)


def on_children(x):
    model, seen = nn.Sequential(nn.ReLU(), nn.Tanh()), {}
    handles = [
        child.register_forward_hook(lambda module, args, output, name=name: seen.__setitem__(name, output))
        for name, child in model.named_children()
    ]
    result = model(x)
    for handle in handles:
        handle.remove()
    return result, seen


def on_an_outside_module(x):
    seen = []
    handle = OUTSIDE.register_forward_hook(lambda module, args, output: seen.append(output))
    result = OUTSIDE(x)
    handle.remove()
    return result, seen, len(OUTSIDE._forward_hooks)


@pytest.mark.parametrize(
    "program", (removed, of_all_kinds, in_a_with_statement, on_children, on_an_outside_module), ids=lambda p: p.__name__
)
def test_programs(program):
    run, said = compiled(program)
    for number in range(3):
        x = torch.full((3,), number - 1.5)
        with torch.no_grad():
            torch.testing.assert_close(run(x), program(x))
    assert said.breaks == said.skips == []


def test_a_handle_leaves_with_its_module():
    def program(x):
        layer = nn.ReLU()
        handle = layer.register_forward_hook(lambda module, args, output: output * 2)
        return layer(x), layer, handle

    run, said = compiled(program)
    for _ in range(2):
        result, layer, handle = run(torch.ones(3))
        assert result.tolist() == layer(torch.ones(3)).tolist() == [2, 2, 2]
        handle.remove()
        assert layer(torch.ones(3)).tolist() == [1, 1, 1]
    assert said.breaks == said.skips == []


def test_a_handle_without_its_module_refers_to_nothing():
    def program(x):
        layer = nn.ReLU()
        return layer(x), layer.register_forward_hook(lambda module, args, output: output * 2)

    run, _ = compiled(program)
    for _ in range(2):
        _, handle = run(torch.ones(3))
        assert handle.hooks_dict_ref() is None
