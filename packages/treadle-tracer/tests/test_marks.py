"""Marks on dimensions, treadle's own and torch's."""

from __future__ import annotations

from typing import NamedTuple

import torch

from treadle_tracer import Mark, set_mark
from treadle_tracer.marks import marks_of


class TorchRange(NamedTuple):
    """As torch._dynamo.decorators keeps a declared range."""

    dim: int
    min: int
    max: int


def test_marks_are_on_the_object():
    x = torch.ones(2, 3)
    set_mark(x, 1, Mark("dynamic", 2, 64, "length"))
    set_mark(x, 0, Mark("static"))
    assert marks_of(x) == {0: Mark("static"), 1: Mark("dynamic", 2, 64, "length")}
    set_mark(x, 0, Mark("maybe"))
    assert marks_of(x)[0] == Mark("maybe")
    assert marks_of(x.view(6)) == marks_of(x.clone()) == marks_of([x]) == marks_of(None) == {}


def test_ranges():
    mark = Mark("dynamic", 2, 64)
    assert [mark.holds(size) for size in (1, 2, 64, 65)] == [False, True, True, False]
    assert (mark.range, Mark("maybe").range, Mark("maybe", lower=3).range) == ("[2, 64]", "[0, inf]", "[3, inf]")


def test_torchs_marks_count_and_treadles_come_first():
    x = torch.ones(2, 3, 4)
    x._dynamo_dynamic_indices = {0, 9}
    x._dynamo_weak_dynamic_indices = {0, 1}
    x._dynamo_static_indices = {2}
    x._dynamo_dynamic_range = {TorchRange(0, 2, 8)}
    assert marks_of(x) == {0: Mark("dynamic", 2, 8), 1: Mark("maybe"), 2: Mark("static")}
    set_mark(x, 2, Mark("dynamic"))
    assert marks_of(x)[2] == Mark("dynamic")
