"""`WeakKeyDictionary`, `WeakValueDictionary` and `WeakSet` in compiled functions: entries go when their objects go, as in eager."""

from __future__ import annotations

import weakref

import pytest
import torch
from compile_runs import compiled


class Target:
    def __init__(self, value=3):
        self.value = value


KEPT, OTHER = Target(7), Target(8)
CACHE: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
KNOWN: weakref.WeakSet = weakref.WeakSet()
NAMED: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def start():
    CACHE.clear()
    KNOWN.clear()
    NAMED.clear()
    CACHE[KEPT] = 5
    KNOWN.add(KEPT)
    NAMED["kept"] = KEPT


def made_inside(x, key):
    target = Target()
    known = weakref.WeakKeyDictionary()
    known[target] = x * 2
    return known[target] + len(known), [k.value for k in known]


def read_from_outside(x, key):
    return x * CACHE[KEPT] + (KEPT in KNOWN), NAMED["kept"].value, NAMED.get("none"), key in CACHE


def cached_by_an_argument(x, key):
    if key not in CACHE:
        CACHE[key] = x * 2
    return CACHE[key] + 1


def added_to_a_set(x, key):
    KNOWN.add(key)
    KNOWN.add(key)
    before = len(KNOWN)
    KNOWN.discard(KEPT)
    return x * before, len(KNOWN), key in KNOWN


def taken_out(x, key):
    CACHE.pop(key, None)
    CACHE.setdefault(key, 3)
    del CACHE[key]
    CACHE[key] = len(CACHE)
    return x * CACHE.get(key), len(CACHE)


def missing(x, key):
    try:
        return CACHE[key]
    except KeyError:
        return x - 1


def of_values(x, key):
    NAMED["key"] = key
    NAMED.pop("kept", None)
    other = OTHER
    known = weakref.WeakValueDictionary(a=other)
    known["b"] = key
    return x * len(NAMED), sorted(known), [value.value for value in known.values()]


def copied(x, key):
    known = weakref.WeakKeyDictionary({key: 1})
    other = known.copy()
    other[KEPT] = 2
    return x * len(other), sorted(other.values()), KEPT in known


def leaves_with_its_keys(x, key):
    holder = Target()
    holder.value = Target(4)
    return x + 1, weakref.WeakSet([holder.value, key]), holder


def dropped_inside(x, key):
    target = Target()
    known = weakref.WeakKeyDictionary()
    known[target] = 4
    before = len(known)
    del target
    return x * before, len(known)


def replaced(x, key):
    known = weakref.WeakKeyDictionary()
    for number in range(3):
        target = Target(number)
        known[target] = number
    return x + len(known), list(known.values())


def dropped_with_its_holder(x, key):
    holder = Target(Target())
    known = weakref.WeakSet([holder.value])
    before = len(known)
    holder.value = None
    return x * before, len(known)


def dropped_by_a_function(x, key):
    def add(known):
        target = Target()
        known[target] = 4

    known = weakref.WeakKeyDictionary()
    add(known)
    return x + len(known)


def dropped_at_the_end(x, key):
    target = Target()
    CACHE[target] = x
    KNOWN.add(target)
    return x + len(CACHE) + len(KNOWN)


def alone(x, key):
    target = Target()
    return x + 1, weakref.WeakSet([target])


def with_another_callback(x, key):
    seen = []
    target = Target()
    reference = weakref.ref(target, seen.append)
    target = reference() is None
    return x + len(seen), target


WHOLE = (
    made_inside,
    read_from_outside,
    cached_by_an_argument,
    added_to_a_set,
    taken_out,
    missing,
    of_values,
    copied,
    leaves_with_its_keys,
)
LEFT = (
    dropped_inside,
    replaced,
    dropped_with_its_holder,
    dropped_by_a_function,
    dropped_at_the_end,
    alone,
    with_another_callback,
)


def _plain(value):
    if isinstance(value, (tuple, list)):
        return [*map(_plain, value)]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, weakref.WeakSet):
        return sorted(item.value for item in value)
    return _plain(value.value) if isinstance(value, Target) else value


def _calls(function):
    """What calls give, and what stands in the containers after each; some objects go between the calls."""
    start()
    seen, alive = [], []
    for number in range(4):
        key = Target(10 + number)
        alive.append(key)
        seen.append(_plain(function(torch.ones(2) * number, key)))
        if number == 1:
            seen.append(_plain(function(torch.ones(2), key)))  # the same key again
            alive.clear()
        del key
        seen.append([len(CACHE), len(KNOWN), sorted(NAMED), _plain(list(CACHE.values()))])
    return seen


@pytest.mark.parametrize("program", (*WHOLE, *LEFT), ids=lambda program: program.__name__)
def test_programs(program):
    expected = _calls(program)
    run, said = compiled(program)
    assert _calls(run) == expected
    if program in WHOLE:
        assert said.graphs and not said.breaks and not said.skips


def test_modules_as_keys():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.calls = weakref.WeakKeyDictionary()

        def forward(self, x):
            self.calls[self.layer] = self.calls.get(self.layer, 0) + 1
            return self.layer(x) * self.calls[self.layer]

    model, other = Model(), Model()
    other.load_state_dict(model.state_dict())
    run, said = compiled(lambda x: model(x))
    for _ in range(3):
        assert torch.allclose(run(torch.ones(2)), other(torch.ones(2)))
    assert model.calls[model.layer] == 3 and not said.breaks


class Holder:
    def __init__(self):
        self.count = 0
        self.parts = [Target(1), Target(2)]
        self.seen = weakref.WeakSet()


def test_what_an_outside_object_holds():
    """It is there, unless the program replaces what holds it."""

    def counted(x, holder):
        holder.count += 1
        for part in holder.parts:
            holder.seen.add(part)
        return x * len(holder.seen) + holder.count

    def let_go(x, holder):
        for part in holder.parts:
            holder.seen.add(part)
        before = len(holder.seen)
        holder.parts = []
        part = None
        return x * before, len(holder.seen)

    for program, is_whole in ((counted, True), (let_go, False)):
        run, said = compiled(program)
        one, other = Holder(), Holder()
        for _ in range(3):
            one.parts, other.parts = one.parts or [Target(3)], other.parts or [Target(3)]
            assert _plain(run(torch.ones(1), one)) == _plain(program(torch.ones(1), other))
            assert len(one.seen) == len(other.seen)
        assert bool(said.graphs) == is_whole


def test_an_exception_behind_a_write():
    def program(x, key):
        CACHE[key] = 4
        KNOWN.add(key)
        raise ValueError(len(CACHE))

    for function in (program, compiled(program)[0]):
        start()
        key = Target()
        with pytest.raises(ValueError, match="2"):
            function(torch.ones(1), key)
        assert CACHE[key] == 4 and key in KNOWN
        del key
