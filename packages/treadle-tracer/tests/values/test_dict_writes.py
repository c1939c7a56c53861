"""What a program does to a dict from outside happens to the real one: the same keys, as objects, in the same order, also for whoever
iterates over it."""

from __future__ import annotations

import collections
import types

import pytest
import torch
from compile_runs import compiled
from hypothesis import given, note, settings
from hypothesis import strategies as st
from mutate_runs import ones


class Thing:
    pass


_THING = Thing()
_KEYS = ["(thing, 1)", "('a', n)", "((thing, n), 'b')", "'k'", "n", "thing", "('a', 5, True)"]
_DO = [
    "d[{key}] = {value}",
    "d.pop({key}, None)",
    "if {key} in d: del d[{key}]",
    "out.append(d.setdefault({key}, {value}))",
    "d.update({{{key}: {value}, 'more': 1}})",
    "d |= {{{key}: {value}}}",
    "d.clear()",
    "if d: out.append(d.popitem())",
    "out.append({key} in d)",
    "out.append(len(d))",
    "out += d",
    "for key in list(d): d[key] = {value}",
]
_STATEMENTS = st.builds(
    lambda do, key, value: do.format(key=_KEYS[key], value=value),
    st.sampled_from(_DO),
    st.integers(0, len(_KEYS) - 1),
    st.sampled_from(["1", "x", "n", "'v'"]),
)


def _function(statements: list[str]):
    lines = ["def f(x, d, thing, n):", "    out = []", *(f"    {s}" for s in statements), "    return x + 1, out"]
    scope: dict = {}
    exec("\n".join(lines), scope)
    return scope["f"]


def _state(d, out, known):
    def name(value):
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, tuple):
            return known.get(id(value), "new"), tuple(map(name, value))
        return "thing" if value is _THING else value

    return [(name(k), name(v)) for k, v in d.items()], [name(v) for v in out]


def _run(function, cls, held: list[int]):
    n = int("5")
    keys = [(_THING, 1), ("a", n), ((_THING, n), "b"), "k", n, _THING, ("a", 5, True)]
    d = cls()
    for index in held:
        d[keys[index]] = index
    del d[keys[held[0]]]  # a hole, which those who iterate skip
    known = {id(key): f"key {i}" for i, key in enumerate(keys) if isinstance(key, tuple)}
    iterator = iter(d)
    next(iterator, None)
    x = ones()
    out = function(x, d, _THING, n)[1]
    try:
        rest = list(iterator)
    except RuntimeError as error:
        rest = [str(error)]
    return _state(d, [*out, *rest], known)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_STATEMENTS, min_size=1, max_size=5),
    st.lists(st.integers(0, len(_KEYS) - 1), min_size=2, max_size=6, unique=True),
    st.sampled_from([dict, collections.OrderedDict, lambda: collections.defaultdict(int)]),
)
def test_random_writes_leave_what_python_leaves(statements, held, cls):
    note("\n".join(statements))
    function = _function(statements)
    traced, _ = compiled(function)
    for _ in range(2):
        if cls is collections.OrderedDict:  # whoever iterates over one sees that its contents were put in anew
            expected, found = (_run(f, cls, held)[0] for f in (function, traced))
        else:
            expected, found = (_run(f, cls, held) for f in (function, traced))
        assert found == expected


def test_popitem_leaves_no_gap_for_those_who_iterate():
    function = _function(["d.popitem()", "d[(thing, 1)] = 1"])
    traced, _ = compiled(function)
    for _ in range(2):
        assert _run(traced, dict, [0, 1]) == _run(function, dict, [0, 1])


@pytest.mark.parametrize(
    "cls",
    [dict, collections.OrderedDict, lambda keys: types.MappingProxyType(dict(keys))],
    ids=["dict", "OrderedDict", "mapping proxy"],
)
def test_keys_that_are_tuples_stay_the_same_objects(cls):
    def f(x, d, known):
        return x + 1, list(d), [key is known for key in d]

    traced, _ = compiled(f)
    for _ in range(3):
        keys = [("a", int("5")), (_THING, ("b", int("6")))]
        d = cls(dict.fromkeys(keys, 1))
        _, found, same = traced(ones(), d, keys[0])
        assert all(a is b for a, b in zip(found, keys, strict=True)) and same == [True, False]


def test_only_the_items_written_are_replayed():
    """The rest may be large, and another thread may be at work on it."""

    def f(x, d):
        d.pop("absent", None)
        d["k"] = x + 1
        d.pop("old")
        return x

    traced, recorder = compiled(f)
    for _ in range(2):
        d = {"old": 1, **dict.fromkeys(range(1000))}
        traced(ones(), d)
        assert list(d) == [*range(1000), "k"]
    assert len(recorder.graphs) == 1
