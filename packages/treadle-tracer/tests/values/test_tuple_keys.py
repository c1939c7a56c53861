"""Tuples of sizes and other ints that change between calls, as keys of dicts: one graph serves all of them."""

from __future__ import annotations

import math

import pytest
import torch
from compile_runs import compiled

SHAPES = [(2, 5), (3, 7), (4, 9), (6, 8), (3, 7), (4, 9)]


def constants_of_each_size(x):
    """Each number is filled once. The keys are tuples of a class, a size and a float."""
    filled, found = {}, []
    for size in (*x.shape, 5):
        key = (type(size), size, math.copysign(1.0, size))
        if key not in filled:
            filled[key] = torch.full((), size)
        found.append(filled[key])
    return torch.stack(found), len(filled)


def items_of_a_dict(x):
    kept = {(x.shape[0], "rows"): 1, (x.shape[1], "columns"): 2}
    kept[x.shape[0], "rows"] += 3
    kept[0, x.shape] = 4
    kept.setdefault((x.shape[1], "columns"), 9)
    return kept, kept.get((x.shape[1], "rows")), kept.pop((0, tuple(x.shape))), (1, 2) in kept, x + len(kept)


@pytest.mark.parametrize("program", [constants_of_each_size, items_of_a_dict])
def test_dicts_of_the_call(program):
    run, said = compiled(program)
    for shape in SHAPES:
        found, expected = run(torch.ones(shape)), program(torch.ones(shape))
        assert repr(found) == repr(expected)
    assert not said.breaks and len(said.graphs) == 2


def test_sizes_that_become_equal():
    run, _ = compiled(constants_of_each_size)
    for shape in [*SHAPES, (3, 3), (7, 7), (7, 5), (5, 5), (6, 7)]:
        found, expected = run(torch.ones(shape)), constants_of_each_size(torch.ones(shape))
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]


def cache_by(key_of):
    cache: dict = {}

    def program(x):
        key = key_of(x)
        if key not in cache:
            cache[key] = torch.arange(x.shape[1]) * 2.0
        return x + cache[key]

    return program, cache


KEYS = {
    "sizes": lambda x: (x.shape[0], x.shape[1]),
    "sizes and more": lambda x: ("grid", x.shape[1], x.dtype, x.device, None, 1.5),
    "shape": lambda x: x.shape,
    "slice of the shape": lambda x: x.shape[1:],
    "computed": lambda x: (x.shape[0] * 2, x.shape[1] - 1),
    "nested": lambda x: (x.dtype, (x.shape[0], (x.shape[1],))),
}


@pytest.mark.parametrize("name", KEYS)
def test_caches_of_what_follows_from_sizes(name):
    program, cache = cache_by(KEYS[name])
    fast, fast_cache = cache_by(KEYS[name])
    run, said = compiled(fast)
    for shape in SHAPES:
        assert torch.equal(run(torch.ones(shape)), program(torch.ones(shape)))
        assert list(fast_cache) == list(cache) and list(map(type, fast_cache)) == list(map(type, cache))
        assert all(torch.equal(fast_cache[key], cache[key]) for key in cache)
    assert not said.breaks
    # Two that fill the cache, and no more than two that find something there.
    assert len(said.graphs) <= 4


def test_a_key_equal_to_another_that_was_there():
    fast, cache = cache_by(KEYS["sizes"])
    run, _ = compiled(fast)
    for shape in SHAPES:
        run(torch.ones(shape))
    cache[8.0, 11] = torch.full((11,), 3.0)  # equal to the key (8, 11)
    assert torch.equal(run(torch.ones(8, 11)), torch.full((8, 11), 4.0))
    del cache[4, 9]
    assert torch.equal(run(torch.ones(4, 9)), (1 + torch.arange(9) * 2.0).expand(4, 9))
    assert (4, 9) in cache


def test_numbers_that_are_no_ints():
    cache: dict = {}

    def program(x, size):
        if size not in cache:
            cache[size] = torch.ones(int(size[0])) * size[1]
        return x + cache[size].sum()

    run, said = compiled(program)
    expected = torch.zeros(2)
    for size in [(2, 3), (3, 4), (5, 6), (7, 8), (3.5, 4), (True, 9), (4, 0), (5, 6), (9, 10)]:
        expected = torch.full((2,), float(int(size[0]) * size[1]))
        torch.testing.assert_close(run(torch.zeros(2), size), expected)
    assert len(cache) == 8


def test_keys_with_methods_of_the_program_are_constants():
    class Key:
        def __init__(self, name):
            self.name = name

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return isinstance(other, Key) and other.name == self.name

    keys, cache = [Key("a"), Key("b")], {}

    def program(x, key):
        return x + cache.setdefault((key, x.shape[1]), len(cache))

    run, _ = compiled(program)
    for shape, key in zip(SHAPES, keys * 3, strict=True):
        wanted = cache.get((key, shape[1]), len(cache))
        assert torch.equal(run(torch.zeros(shape), key), torch.full(shape, float(wanted)))


def test_items_without_a_hash():
    def program(x):
        try:
            return {(x.shape[0], [1]): x}
        except TypeError as error:
            return x + len(str(error))

    run, _ = compiled(program)
    for shape in SHAPES:
        assert torch.equal(run(torch.ones(shape)), program(torch.ones(shape)))


def test_items_that_are_no_numbers_are_found_by_identity():
    nan = float("nan")

    def program(x, ratio):
        known = {(x.shape[0], nan): 1, (x.shape[1], ratio): 2}
        return (
            x + len(known),
            (x.shape[0], nan) in known,
            (x.shape[0], float("nan")) in known,
            (x.shape[1], ratio) in known,
        )

    run, _ = compiled(program)
    for shape, ratio in zip(SHAPES, (0.5, 1.5, nan, 2.5, nan, 3.5), strict=True):
        found, expected = run(torch.ones(shape), ratio), program(torch.ones(shape), ratio)
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]


def test_items_that_are_equal_but_have_other_hashes():
    class Alike:
        def __init__(self, number):
            self.number = number

        def __hash__(self):
            return self.number

        def __eq__(self, other):
            return True

    one, other = Alike(1), Alike(2)

    def program(x):
        known = {(x.shape[0], one): 1}
        known[x.shape[0], other] = 2
        return x + len(known)

    run, _ = compiled(program)
    for shape in SHAPES:
        assert torch.equal(run(torch.ones(shape)), program(torch.ones(shape)))
