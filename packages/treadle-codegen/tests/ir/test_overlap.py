"""`may_meet` against counting: every load and store of small loops."""

from __future__ import annotations

import itertools
import random

from treadle_codegen.ir.loops import Axis
from treadle_codegen.ir.overlap import may_meet
from treadle_shapes.expr import symbol


def meets(load: tuple[list[int], int], store: tuple[list[int], int], extents: list[int]) -> bool:
    points = list(itertools.product(*map(range, extents)))
    stored = {sum(c * i for c, i in zip(store[0], p, strict=True)) + store[1]: p for p in points}
    loaded = ((sum(c * i for c, i in zip(load[0], p, strict=True)) + load[1], p) for p in points)
    return any(at in stored and stored[at] != p for at, p in loaded)


def test_against_counting() -> None:
    choose = random.Random(0)
    answers = {True: 0, False: 0}
    for _ in range(400):
        extents = [choose.randint(2, 4) for _ in range(choose.randint(1, 3))]
        axes = [Axis(symbol(f"i{k}", 0, e - 1), e) for k, e in enumerate(extents)]
        strides, step = [0] * len(extents), choose.randint(1, 3)
        for k in choose.sample(range(len(extents)), len(extents)):
            strides[k], step = step, step * (extents[k] + choose.randint(0, 2))
        store, load = (strides, choose.randint(0, 9)), (strides, choose.randint(0, 9))
        if choose.random() < 0.2:
            load = ([choose.randint(0, 5) for _ in extents], choose.randint(0, 40))
        indices = [
            sum((a.symbol * c for a, c in zip(axes, coefs, strict=True)), start) for coefs, start in (load, store)
        ]
        found = may_meet(indices[0], indices[1], axes)
        exact = meets(load, store, extents)
        assert found or not exact
        if load[0] == store[0]:
            assert found == exact
        answers[exact] += 1
    assert min(answers.values()) > 50


def test_sizes_that_are_not_known() -> None:
    n, i = symbol("n", 1, None), symbol("i", 0, None)
    assert not may_meet(i + 1, i + 1, [Axis(i, n)]) and may_meet(i, i + 1, [Axis(i, n)])
    assert may_meet(None, i, [Axis(i, n)])
