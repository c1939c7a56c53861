"""Continuations are shared by all breaks at one place, and die with their function."""

from __future__ import annotations

import gc
import weakref

import treadle_frame
from treadle_tracer.bytecode import SlotKind, read
from treadle_tracer.output import continuations
from treadle_tracer.output.continuations import (
    family_of,
    forget_continuations,
    index_in_original,
    is_continuation,
    starts_in_loop,
)


def fresh():
    namespace = {}
    exec("def f(x, n):\n    for i in range(n):\n        x = x + i\n    y = x * 2\n    return y", namespace)
    return namespace["f"]


def place(model, opname, count=0):
    return [i for i, x in enumerate(model.instructions) if x.opname == opname][count]


def test_one_continuation_per_place_and_layout():
    code = fresh().__code__
    model = read(code)
    family = family_of(code, model)
    assert family is family_of(code, model) and family.model is model
    index = place(model, "BINARY_OP", 1)
    kinds = (SlotKind.VALUE, SlotKind.VALUE)
    made = family.member(index, ("n",), kinds)
    assert made is family.member(index, ("n",), kinds)
    assert made is not family.member(index, (), kinds)
    assert is_continuation(made.code) and not is_continuation(code)
    assert family_of(made.code, read(made.code)) is family


def test_a_continuation_knows_its_original_and_its_loop():
    code = fresh().__code__
    model = read(code)
    family = family_of(code, model)
    inside, after = place(model, "BINARY_OP"), place(model, "BINARY_OP", 1)
    looping = family.member(inside, ("n", "i"), (SlotKind.VALUE,) * 3)
    straight = family.member(after, (), (SlotKind.VALUE,) * 2)
    assert starts_in_loop(looping.code) and not starts_in_loop(straight.code) and not starts_in_loop(code)
    rest = read(straight.code)
    (multiply,) = [i for i, x in enumerate(rest.instructions) if x.opname == "BINARY_OP"]
    assert index_in_original(straight.code, rest, multiply) == after
    assert index_in_original(straight.code, rest, 0) == -1
    assert index_in_original(code, model, 3) == 3


def test_continuations_of_a_skipped_function_are_skipped():
    code = fresh().__code__
    treadle_frame.skip(code)
    model = read(code)
    made = family_of(code, model).member(place(model, "BINARY_OP", 1), (), (SlotKind.VALUE,) * 2)
    assert treadle_frame.is_skipped(made.code)


def test_forgetting_and_dying():
    function = fresh()
    code = function.__code__
    model = read(code)
    family = weakref.ref(family_of(code, model))
    made = family().member(place(model, "BINARY_OP", 1), (), (SlotKind.VALUE,) * 2)
    del function, code
    gc.collect()
    assert family() is None
    assert family_of(made.code, read(made.code)) is None
    forget_continuations()
    assert len(continuations._families) == 0
