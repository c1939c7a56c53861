"""`cls.__subclasses__()` is known while tracing, and guarded."""

from __future__ import annotations

import gc

import torch
from compile_runs import compiled


class Backend:
    scale = 0


class Double(Backend):
    scale = 2


class Triple(Backend):
    scale = 3


def walked(x):
    found, waiting = [], Backend.__subclasses__()
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        found.append(cls.scale)
    return x * sum(found), found


def test_a_walk_over_subclasses_is_one_graph():
    run, recorder = compiled(walked)
    for _ in range(2):
        assert run(torch.ones(1)) == walked(torch.ones(1))
    assert not recorder.breaks and len(recorder.entries) == 1


def test_classes_that_come_and_go():
    run, _ = compiled(walked)
    assert run(torch.ones(1))[1] == [3, 2]

    class Quadruple(Triple):
        scale = 4

    assert run(torch.ones(1))[1] == walked(torch.ones(1))[1] == [3, 4, 2]
    del Quadruple
    gc.collect()
    assert run(torch.ones(1))[1] == walked(torch.ones(1))[1] == [3, 2]


def test_classes_of_the_program():
    def f(x):
        class Own(Double):
            pass

        return x + 1, [cls.__name__ for cls in Double.__subclasses__()], Own.scale

    assert compiled(f)[0](torch.ones(1))[1:] == (["Own"], 2)


def test_metaclasses_and_arguments():
    class Meta(type):
        pass

    def f(x):
        try:
            return x + 1, Double.__subclasses__(3)
        except TypeError as error:
            return x, str(error)

    def g(x):
        return x + 1, type.__subclasses__(Meta)

    assert compiled(f)[0](torch.ones(1))[1] == f(torch.ones(1))[1]
    assert compiled(g)[0](torch.ones(1))[1] == []
