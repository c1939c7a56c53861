"""Guards of keys see every change and keep no key alive."""

from __future__ import annotations

import collections
import gc
import types
import weakref

import pytest
import torch
from compile_runs import compiled
from mutate_runs import check, ones

from treadle_tracer.values.key_guards import HasKey, ItemOf, SameKeys, SameSet


class Thing:
    pass


def test_guard_callables_hold_only_while_their_keys_live():
    thing = Thing()
    same, members, has = SameKeys({thing: 1, 2: 3}), SameSet({thing, 2}), HasKey(thing, True)
    item, inner = ItemOf(thing), ItemOf((thing, 1))
    assert (
        same({thing: 5, 2: 5}) and not same({2: 5, thing: 5}) and not same({thing: 5}) and not same({Thing(): 1, 2: 3})
    )
    assert members({2, thing}) and not members({2.0, thing})
    assert has({thing: 0}) and not has({}) and HasKey(thing, False)({})
    assert item({thing: 4}) == 4 and inner({(thing, 1): 5}) == 5
    reference = weakref.ref(thing)
    del thing
    gc.collect()
    assert reference() is None and not has({}) and not same({}) and not members(set())
    with pytest.raises(KeyError):
        item({None: 1})
    with pytest.raises(KeyError):
        inner({(None, 1): 1})


@pytest.mark.parametrize("make", [dict, types.MappingProxyType], ids=["dict", "proxy"])
@pytest.mark.parametrize("count", [2, 300])
def test_keys_that_are_objects(make, count):
    def program():
        keys = [Thing() for _ in range(count)]

        def f(x, mapping):
            total = 0
            for key, value in mapping.items():
                total += value * (3 if key is keys[0] else 1)
            return x + total

        numbered = dict(zip(keys, range(1, count + 1), strict=True))
        yield f, ones(), make(numbered)
        yield f, ones(), make(dict(reversed(numbered.items())))
        yield f, ones(), make({**numbered, "more": 5})
        yield f, ones(), make(dict(zip([Thing(), *keys[1:]], range(1, count + 1), strict=True)))
        yield f, ones(), make(numbered)

    check(program)


def test_tuples_of_objects_as_keys_keep_nothing_alive():
    holder = {(Thing(), 1): 2, ("a", (Thing(),)): 3, Thing: 4}

    def sums(x):
        return x + sum(holder.values()) + len([key for key in holder if key[1] == 1] if len(holder) == 2 else ())

    def looks_up(x, mapping, key):
        return x + mapping[key] + ((key, 1) in mapping)

    run, said = compiled(sums, fullgraph=True)
    of_key, said_of_key = compiled(looks_up, fullgraph=True)
    keys = [(Thing(), 1)]
    for change in (
        lambda: None,
        lambda: None,
        lambda: holder.pop(Thing),
        lambda: holder.update({keys[0]: 5}),
        lambda: None,
    ):
        change()
        assert torch.equal(run(torch.zeros(1)), sums(torch.zeros(1)))
        assert of_key(torch.zeros(1), {keys[0]: 7, "b": 1}, keys[0]).item() == 7
    assert len(said.graphs) == 3 and len(said_of_key.graphs) == 1
    alive = [weakref.ref(part) for part in (*next(iter(holder))[:1], keys[0][0])]
    holder.clear()
    keys.clear()
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


@pytest.mark.parametrize("keys", ["abc", (Thing(), Thing(), "c")], ids=["texts", "objects"])
def test_an_ordered_dict_has_an_order_of_its_own(keys):
    mapping = collections.OrderedDict(zip(keys, (1, 2, 3), strict=True))
    mapping.move_to_end(keys[0])

    def f(x):
        return [x + item for item in mapping.values()], list(mapping)[2]

    run, said = compiled(f, fullgraph=True)
    for changed in (False, False, True):
        if changed:
            mapping.move_to_end(keys[1])
        assert run(torch.zeros(())) == f(torch.zeros(()))
    assert len(said.graphs) == 2


def test_object_that_is_looked_up():
    def program():
        one, other = Thing(), Thing()

        def f(x, mapping, key):
            return x * mapping[key] if key in mapping else x - 1

        yield f, ones(), {one: 2}, one
        yield f, ones(), {one: 3}, one
        yield f, ones(), {other: 3}, one
        yield f, ones(), {one: 2, other: 5}, other

    check(program)


def test_parameter_as_an_argument_is_an_input():
    def program():
        def f(x, weights):
            return x * weights["a"] * weights["b"]

        first = {"a": torch.nn.Parameter(ones() * 2), "b": torch.nn.Parameter(ones() * 3)}
        yield f, ones(), first
        yield f, ones(), {name: torch.nn.Parameter(weight + 1) for name, weight in first.items()}
        yield f, ones(), {"a": first["a"], "b": first["a"]}

    check(program, compiles=2)
