"""`is` between equal numbers and strings, dicts that are the globals, sets that are changed: nothing is taken for granted."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from compile_runs import compiled
from mutate_runs import ones


def _another(text):
    return "".join(text)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1000, int("1000")),
        (2.5, float("2.5")),
        ("text", _another("text")),
        (b"ab", bytes([97, 98])),
        (1j, complex("1j")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_identity_of_equal_constants(one, two):
    def f(x, a, b):
        return x + 1 if a is b else x - 1

    fast, _ = compiled(f)
    for a, b in ((one, one), (one, two), (two, two), (one, one)):
        assert torch.equal(fast(ones(), a, b), f(ones(), a, b))


def test_identity_of_what_has_one_object_for_each_value():
    def f(x, a, b):
        return x + 1 if a is b else x - 1

    fast, recorder = compiled(f)
    for a, b in ((7, 7), (None, None), (True, False), (torch.float32, torch.float64), (1000, 1001), ("a", 1)):
        assert torch.equal(fast(ones(), a, b), f(ones(), a, b))
    assert not recorder.breaks


def test_identity_of_numbers_that_change():
    def f(x, a, b):
        return x * a + 1 if a is b else x * a - 1

    fast, _ = compiled(f)
    for number in (1000, 2000, 3000):
        other = int(str(number))
        for b in (number, other):
            assert torch.equal(fast(ones(), number, b), f(ones(), number, b))


def test_a_dict_that_is_the_globals_at_another_call():
    space = {"K": 2}
    exec("def f(d, x):\n    global K\n    K = K + 1\n    return x * d['K']", space)
    f = space["f"]
    fast, _ = compiled(f)
    assert fast({"K": 10}, ones()).tolist() == [10, 10]
    assert fast(space, ones()).tolist() == [4, 4]
    assert space["K"] == 4


def test_a_dict_that_is_written_and_is_the_globals():
    space = {"K": 2}
    exec("def f(d, x):\n    d['K'] = 7\n    return x * K", space)
    fast, _ = compiled(space["f"])
    assert fast({"K": 10}, ones()).tolist() == [2, 2]
    assert fast(space, ones()).tolist() == [7, 7]


def test_a_package_that_appears(tmp_path, monkeypatch):
    def f(x):
        return x + 1 if importlib.util.find_spec("a_package_of_this_test") is not None else x - 1

    fast, _ = compiled(f)
    assert fast(ones()).tolist() == [0, 0]
    (tmp_path / "a_package_of_this_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert fast(ones()).tolist() == [2, 2]


ITEMS = [f"item {n}" for n in range(12)]


def _add(s):
    for item in ITEMS[4:]:
        s.add(item)
    s.discard(ITEMS[0])
    s.remove(ITEMS[5])
    s.add("another")


def _update(s):
    s.update(ITEMS[3:])
    s |= {"a", "b"}


def _remove(s):
    s -= {ITEMS[0], ITEMS[1]}
    s.intersection_update(ITEMS[1:])


@pytest.mark.parametrize("change", [_add, _update, _remove])
def test_the_order_of_a_set_after_a_change(change):
    def f(s, x):
        change(s)
        return x + 1

    fast, _ = compiled(f)
    for start in (ITEMS[:4], ITEMS[:3], ITEMS):
        expected, found = set(start), set(start)
        f(expected, ones())
        fast(found, ones())
        assert list(found) == list(expected)
