"""`functools.singledispatch` and `singledispatchmethod` in compiled functions."""

from __future__ import annotations

import functools

import torch
from compile_runs import compiled


@functools.singledispatch
def size(value):
    return 1


@size.register
def _(value: int):
    return value * 2


@size.register(list)
def _(value):
    return len(value) * 10


@functools.singledispatch
def doubled(value):
    return value


@doubled.register
def _(value: torch.Tensor):
    return value * 2


class Named:
    @functools.singledispatchmethod
    def kind(self, value):
        return 1

    @kind.register
    def _(self, value: str):
        return len(value)


class Base:
    pass


class Child(Base):
    pass


def test_the_function_for_a_class_is_traced():
    def program(x):
        named = (
            Named()
        )  # held: since Python 3.13, `singledispatchmethod` keeps bound methods by weak references to the instances
        return doubled(x) * size(4) + size([1, 2]) + size("s") + named.kind("abc") + named.kind(2)

    run, said = compiled(program, fullgraph=True)
    assert torch.equal(run(torch.ones(2)), program(torch.ones(2))) and len(said.graphs) == 1


def test_a_function_that_is_registered_later_counts():
    def program(x):
        return x + size(Child())

    run, said = compiled(program, fullgraph=True)
    assert run(torch.zeros(1)) == 1
    size.register(Base)(lambda value: 5)
    assert run(torch.zeros(1)) == 5
    size.register(Child)(lambda value: 7)
    assert run(torch.zeros(1)) == 7 and len(said.graphs) == 3


def test_a_class_made_in_the_trace_breaks_the_graph():
    def program(x):
        class Local(int):
            pass

        return x + size(Local(4)) + hasattr(Base, "__abstractmethods__")

    run, said = compiled(program)
    assert run(torch.zeros(1)) == 8 and said.breaks


def test_a_function_that_is_registered_in_the_trace_counts():
    @functools.singledispatch
    def local(value):
        return 1

    def program(x):
        before = local("a")
        local.register(str)(lambda value: before + 5)
        return x + before + local("a")

    expected = [program(torch.zeros(1)).item() for _ in range(3)]
    local.register(str)(lambda value: 1)
    run, _ = compiled(program)
    assert [run(torch.zeros(1)).item() for _ in range(3)] == expected
