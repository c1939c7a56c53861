"""What a compile keeps alive: nothing of a call once it is over, nothing of a function once it is gone."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch
from compile_runs import compiled, item, run_graph

import treadle_frame
from treadle_tracer import compile_handler
from treadle_tracer.weakly import is_referred_to_weakly


def call_twice(function, *args):
    fast, recorder = compiled(function)
    for _ in range(2):
        fast(*args)
    return fast, recorder


def test_inputs_die_after_the_call():
    def breaks(x):
        y = x * 2
        item(y.sum())
        return y + 1

    big = torch.ones(100)
    alive = weakref.ref(big)
    kept = call_twice(breaks, big)
    assert len(kept[1].graphs) == 2
    del big
    gc.collect()
    assert alive() is None


class HashedByNumber:
    def __hash__(self):
        return 1


KEYED = {}


class Opaque:
    pass


SEEN = set()


def writes_and_raises(x):
    SEEN.add(1)  # what stands for a set refers to its trace
    KEYED[[]] = 1
    return x


def writes_to_a_set(x):
    SEEN.add(1)
    return x + KEYED.get(3, 0)


def reads_its_length(x):
    return x, len(KEYED)


def reads_a_key(x):
    return x + 1, KEYED.get(3)


def reads_it_beside_a_generator(x):
    return x + sum((1 for _ in (1, 2)), 0), len(KEYED), [key for key in KEYED] == []


@pytest.mark.parametrize(
    "program", (reads_its_length, reads_a_key, reads_it_beside_a_generator), ids=lambda program: program.__name__
)
def test_why_a_trace_ended_holds_nothing_that_it_has_seen(program):
    """Without a collection: the reason's traceback would refer to the frame that holds the reason."""
    key = HashedByNumber()
    KEYED[key] = 1
    gc.disable()
    try:
        _, said = call_twice(program, torch.ones(2))
        alive = weakref.ref(key)
        KEYED.clear()
        del key
        assert alive() is None
    finally:
        gc.enable()
    assert said.breaks or said.skips


@pytest.mark.parametrize("program", (writes_and_raises, writes_to_a_set), ids=lambda program: program.__name__)
def test_a_trace_dies_before_the_garbage_collector_comes(program):
    key = Opaque()
    KEYED[key] = 1
    gc.disable()
    try:
        fast, _ = compiled(program)
        for _ in range(2):
            with contextlib.suppress(TypeError):
                fast(torch.ones(2))
        alive = weakref.ref(key)
        KEYED.clear()
        del key
        assert alive() is None
    finally:
        SEEN.clear()
        gc.enable()


def test_values_of_a_frame_die_when_the_program_drops_them():
    """At the second break nothing of the first half is referenced any more, as in Python."""
    seen = []

    class Watcher:
        def __init__(self, tensor):
            self.alive = weakref.ref(tensor)

    def program(x):
        big = x.repeat(1000)
        watch(big)
        y = big.sum()
        del big
        item(y)
        check()
        return y

    def watch(tensor):
        seen.append(Watcher(tensor))
        opaque(seen)

    def check():
        gc.collect()
        seen.append(seen[-1].alive() is None)
        opaque(seen)

    opaque = id  # the trace cannot know what id() of an outside list gives
    program(torch.ones(2))
    eager = seen[-1]
    seen.clear()
    call_twice(program, torch.ones(2))
    assert seen[1] is eager is True


def test_code_and_parameters_die_with_the_function():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

    def make():
        model = Model()
        text = "def run(x):\n    y = x * model.weight\n    item(y.sum())\n    return y + model.weight\n"
        namespace = {"model": model, "item": item}
        exec(text, namespace)
        kept = call_twice(namespace["run"], torch.ones(3))
        assert len(kept[1].graphs) == 2
        return weakref.ref(model.weight), weakref.ref(namespace["run"].__code__)

    alive = [make() for _ in range(2)]
    for _ in range(3):
        gc.collect()
    assert [(a() is None, b() is None) for a, b in alive] == [(True, True)] * 2


def test_the_state_of_an_inner_function_dies_with_its_code():
    """One handler compiles many functions; what it knows of each lasts as long as the function's code."""
    handler = compile_handler(run_graph)
    outer, _ = compiled(lambda x: x + 1)
    outer(torch.ones(2))

    def run_a_fresh_function():
        namespace = {"weight": torch.nn.Parameter(torch.ones(3))}
        exec("def inner(x):\n    return x * weight", namespace)
        inner = namespace["inner"]
        treadle_frame.set_handler(handler)
        try:
            for size in (1, 2, 3):
                inner(torch.ones(size, 3))
        finally:
            treadle_frame.set_handler(None)
        assert len(treadle_frame.entries(inner)) == 2

        return weakref.ref(inner.__code__), weakref.ref(namespace["weight"])

    alive = [run_a_fresh_function() for _ in range(3)]
    for _ in range(3):
        gc.collect()
    assert [(code() is None, weight() is None) for code, weight in alive] == [(True, True)] * 3
    assert len(handler._states) == 0


def add(x, made):
    return x + made.number


def choose(x, cls):
    return (x * 2 if issubclass(cls, dict) else x) + 1


@pytest.mark.parametrize(
    ("program", "make"),
    [(add, lambda: type("Made", (), {"number": 3})()), (choose, lambda: type("Made", (dict,), {}))],
    ids=["instances", "classes"],
)
def test_what_is_made_for_every_call_is_not_compiled_for_ever(program, make):
    """Its entries are gone when the next call comes, and count all the same."""
    fast, recorder = compiled(program, recompile_limit=4)
    x = torch.ones(3)
    with pytest.warns(RuntimeWarning, match=f"{program.__name__} .* runs uncompiled"):
        for _ in range(12):
            made = make()
            assert torch.equal(fast(x, made), program(x, made))
            del made
            gc.collect()
    assert len(recorder.entries) == 4
    assert [name for name, _ in recorder.skips] == [program.__name__]


def test_classes_that_a_library_makes_are_referred_to_weakly():
    """`torch.fx` makes a class for every graph module. It stands in no module, unlike those that last."""
    module = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    assert is_referred_to_weakly(type(module))
    assert not is_referred_to_weakly(torch.nn.Linear) and not is_referred_to_weakly(torch.nn.functional.linear)


@pytest.mark.parametrize("free_stride", [False, True])
def test_arguments_of_a_call_that_compiles_die_without_a_collection(free_stride):
    def program(x):
        return x * 2

    fn, _ = compiled(program)
    gc.collect()
    gc.disable()
    try:
        for size in (4, 5, 6):
            x = torch.ones(size, size + 3)[:, : size + 1] if free_stride else torch.ones(size)
            alive = weakref.ref(x)
            fn(x)
            del x
            assert alive() is None
    finally:
        gc.enable()
