"""`hash` of tuples from outside."""

from __future__ import annotations

from typing import NamedTuple

import torch
from compile_runs import compiled


class Place(NamedTuple):
    row: int

    def __hash__(self):
        return 5


KEY = ("a", 3, (1, 2.5))
PLACE = Place(1)


def test_hashes_of_constants_are_part_of_the_graph():
    def function(x, key):
        return x + hash(KEY) % 7 + hash(key) % 11

    run, recorder = compiled(function)
    for key in (("a", 1), ("a", "b"), (True, (None, 2.0)), ("a", 1)):
        x = torch.ones(3)
        assert torch.equal(run(x, key), function(x, key))
    assert not recorder.breaks and len(recorder.graphs) == 3


def test_a_class_of_tuples_has_a_hash_of_its_own():
    def function(x):
        return x + hash(PLACE), x + hash((PLACE, 1)) % 7

    run, _ = compiled(function)
    for n in (3, 4):
        assert all(map(torch.equal, run(torch.ones(n)), function(torch.ones(n))))
