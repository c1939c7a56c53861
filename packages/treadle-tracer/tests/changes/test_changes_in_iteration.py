"""Sets and dicts that change while they are iterated over, and sets whose order depends on their history: what eager does."""

from __future__ import annotations

import collections
import math

import pytest
import torch
from compile_runs import compiled

NAMES = [f"item {n}" for n in range(9)]


def reaching_from_the_end():
    """A set that iterates in another order than it was filled in, and a set of its items in that order does not."""
    made = set()
    made.add(7)
    made.add(15)
    return made


def own_set_grows(x):
    items = {1, 2, 3}
    for item in items:
        items.add(item + 10)
    return x + 1


def own_set_exchanges(x):
    items, seen = {1, 2, 3}, []
    for item in items:
        seen.append(item)
        if item < 10:
            items.remove(item)
            items.add(item + 10)
    return x + 1, seen


def set_shrinks(x, items):
    for _ in items:
        items.discard("item 1")
    return x + 1


def dict_exchanges(x):
    table, seen = {"a": 1, "b": 2}, []
    for key in table:
        seen.append(key)
        if key == "b":
            del table["a"]
            table["c"] = 1
    return x + 1, seen


def dict_moves(x):
    table, seen = {"a": 1, "b": 2, "c": 3}, []
    for key, value in table.items():
        seen.append((key, value))
        if key == "a":
            table["b"] = table.pop("b") + 10
    return x + 1, seen


def ordered_dict_moves(x):
    table, seen = collections.OrderedDict(a=1, b=2, c=3), []
    for key in table:
        seen.append(key)
        if len(seen) > 4:
            break
        table.move_to_end(key)
    return x + 1, seen


def grows_by_values(x):
    table = {"a": 1, "b": 2}
    for key in table:
        table[key] += 1
    return x + 1, table


def copied(x, items):
    return x + 1, items.copy(), set(items), frozenset(items)


def copy_is_read(x, items):
    return x + 1, [item for item in items.copy()], [item for item in set(items)]


def united(x, items):
    return x + 1, items | {"a", "b"}, items.union(["a", "b"]), items ^ {"item 1", "c"}


def reduced(x, items):
    return x + 1, items - {"item 1"}, items & {"item 2", "item 3", "item 4"}


def not_sorted_by_value(x):
    return x + 1, sorted({math.nan, 3.0, 1.0, 2.0}), sorted({frozenset({1}), frozenset({2}), frozenset({3})})


def frozen_itself(x, items):
    return x + 1, frozenset(items) is items, items.copy() is items, list(items)


MAKERS = (lambda: set(NAMES), reaching_from_the_end)
ALONE = (
    own_set_grows,
    own_set_exchanges,
    dict_exchanges,
    dict_moves,
    ordered_dict_moves,
    grows_by_values,
    not_sorted_by_value,
)


def look(value):
    if isinstance(value, (set, frozenset, list, tuple)):
        return type(value), [look(item) for item in value]
    return repr(value)


def outcome(function, *args):
    try:
        return look(function(*args)), [look(arg) for arg in args]
    except RuntimeError as error:
        return str(error), [look(arg) for arg in args]


@pytest.mark.parametrize("function", ALONE, ids=lambda f: f.__name__)
def test_own_containers(function):
    fast, _ = compiled(function)
    for _ in range(2):
        assert outcome(fast, torch.ones(2)) == outcome(function, torch.ones(2))


@pytest.mark.parametrize("make", MAKERS, ids=["names", "numbers"])
@pytest.mark.parametrize("function", [set_shrinks, copied, copy_is_read, united, reduced], ids=lambda f: f.__name__)
def test_outside_sets(function, make):
    fast, _ = compiled(function)
    for _ in range(2):
        assert outcome(fast, torch.ones(2), make()) == outcome(function, torch.ones(2), make())


def test_a_frozenset_is_its_own_copy():
    fast, recorder = compiled(frozen_itself)
    items = frozenset(NAMES)
    assert outcome(fast, torch.ones(2), items) == outcome(frozen_itself, torch.ones(2), items)
    assert not recorder.breaks
