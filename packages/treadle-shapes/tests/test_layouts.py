from __future__ import annotations

import itertools
import random

from treadle_shapes.expr import evaluate, maximum, symbol
from treadle_shapes.layouts import nested_extent, product, without_floor


def walked(dims):
    return sorted(
        sum(i * s for i, (s, _) in zip(at, dims, strict=True)) for at in itertools.product(*[range(n) for _, n in dims])
    )


def test_extents_of_numbers_are_those_of_walking():
    generator = random.Random(0)
    found = 0
    for _ in range(2000):
        dims = [
            (generator.choice([1, 2, 3, 4, 6, 8]), generator.choice([2, 3, 4])) for _ in range(generator.randint(0, 3))
        ]
        extent = nested_extent(dims)
        places = walked(dims)
        assert (extent is not None) == (places == list(range(len(places)))), dims
        if extent is not None:
            assert extent == len(places)
            found += 1
    assert found > 50


def test_symbolic_strides():
    n, m, c = symbol("n", 1), symbol("m", 1), symbol("c", 1)
    assert nested_extent([(c * m, n), (1, c), (c, m)]) == n * m * c
    assert nested_extent([(c * m + 1, n), (1, c), (c, m)]) is None
    assert nested_extent([]) == 1
    assert product([n, m, 2]) == 2 * n * m and product([]) == 1


def test_floors_are_taken_out_of_strides_and_nothing_else():
    n, m = symbol("n", 0), symbol("m", 0)
    stride = maximum(n, 1) * maximum(1, m) * 3
    assert without_floor(stride) == 3 * n * m
    assert without_floor(maximum(n, 2)) == maximum(n, 2)
    assert without_floor(maximum(n, 1) + m) == n + m
    assert without_floor(7) == 7
    for values in ({n: 2, m: 5}, {n: 1, m: 1}):
        assert evaluate(without_floor(stride), values) == evaluate(stride, values)
