"""Modules that the program makes, and what it stores in modules that it was given: parameters, buffers, submodules."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compare, t, whole
from torch import nn

INNER = nn.Linear(4, 4)


class Wrapper(nn.Module):
    def __init__(self, inner, factor=2):
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, x):
        return self.inner(x) * self.factor


class Parts(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight
        self.register_buffer("shift", torch.ones(4))
        self.register_parameter("absent", None)
        self.add_module("act", nn.ReLU())

    def forward(self, x):
        return self.act(x @ self.weight + self.shift)


def wrapped(x):
    return Wrapper(Wrapper(INNER, 3))(x)


def around_a_function(x):
    return Wrapper(lambda y: y + 1)(x)


def returned(x):
    made = Wrapper(INNER)
    return made, made(x)


def parts_returned(x):
    made = Parts(INNER.weight)
    return made(x), made


def sequential(x):
    return nn.Sequential(INNER, nn.ReLU(), nn.Sigmoid())(x), nn.ModuleList([INNER, nn.ReLU()])[1](x)


def without_parameters(x):
    return nn.Dropout(0.5)(x), nn.LayerNorm(4, elementwise_affine=False)(x)


def asked(x):
    made = Wrapper(INNER).eval()
    return made(x), [name for name, _ in made.named_parameters()], len(list(made.modules())), made.training


@pytest.mark.parametrize(
    "program",
    [wrapped, around_a_function, returned, parts_returned, sequential, without_parameters, asked],
)
def test_a_module_made_inside(program):
    whole(compare(program, t(3, 4), calls=3))


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.number = None, 2
        self.weight, self.spare = nn.Parameter(torch.ones(4)), nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("buffer", torch.zeros(4))


def a_new_module(self, x):
    self.act = nn.ReLU()
    return self.act(self.layer(x))


def a_new_module_around_an_old_one(self, x):
    self.act = nn.Sequential(self.layer, nn.ReLU())
    return self.act(x)


def a_submodule_for_another(self, x):
    self.layer = self.other
    return self.layer(x)


def a_submodule_under_a_new_name(self, x):
    self.added = self.other
    self.add_module("more", nn.Tanh())
    return self.more(self.added(x)) + len(list(self.modules()))


def a_submodule_for_a_number(self, x):
    self.number = self.other
    return self.number(x)


def a_parameter_for_another(self, x):
    self.weight = self.spare
    self.layer.weight = self.other.weight
    return self.layer(x) * self.weight


def a_parameter_under_a_new_name(self, x):
    self.added = self.spare
    return x * self.added


def a_parameter_for_a_buffer(self, x):
    self.buffer = self.spare
    return x * self.buffer


def buffers(self, x):
    self.register_buffer("added", x * 2)
    self.register_buffer("buffer", x * 3)
    return self.added + self.buffer


def none(self, x):
    self.weight = None
    self.layer = None
    return x + 1 if self.weight is None and self.layer is None else x


def modes(self, x):
    self.eval()
    y = self.layer(x) * self.training
    self.train()
    return y * self.training


def refused(self, x):
    texts = []
    for name, value in (("weight", x), ("layer", 3), ("buffer", 3)):
        try:
            setattr(self, name, value)
        except TypeError as error:
            texts.append(str(error))
    return texts, x + 1


STORES = [
    a_new_module,
    a_new_module_around_an_old_one,
    a_submodule_for_another,
    a_submodule_under_a_new_name,
    a_submodule_for_a_number,
    a_parameter_for_another,
    a_parameter_under_a_new_name,
    a_parameter_for_a_buffer,
    buffers,
    none,
    modes,
    refused,
]


@pytest.mark.parametrize("forward", STORES)
def test_a_store_in_a_module(forward):
    cls = type("Storing", (Base,), {"forward": forward})

    def twice(module, x):
        return module(x), module(x)

    recorder = compare(twice, lambda: cls(), t(3, 4), calls=3)
    assert recorder.codes() == []
    assert len(recorder.graphs) <= 2


def deleted(self, x):
    del self.layer, self.weight, self.buffer, self.number
    return self.other(x), [hasattr(self, name) for name in ("layer", "weight", "buffer", "number")]


def test_members_are_deleted():
    cls = type("Deleting", (Base,), {"forward": deleted})
    recorder = compare(lambda module, x: module(x), lambda: cls(), t(3, 4), calls=3)
    assert recorder.codes() == []


class Counting:
    def __init__(self):
        self.a, self.deleted = 1, 0

    def __delattr__(self, name):
        self.deleted += 1
        super().__delattr__(name)


def test_a_class_with_its_own_delattr():
    def program(counting, x):
        del counting.a
        return x * counting.deleted, hasattr(counting, "a")

    whole(compare(program, lambda: Counting(), t(3), calls=1))
