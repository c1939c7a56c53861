"""`pickle.dumps` in compiled functions gives the bytes of eager."""

from __future__ import annotations

import pickle

import pytest
import torch
from compile_runs import compiled

TEXT = "one text"
NUMBERS = [1, 2]


def keywords(x, **options):
    return x + 1, pickle.dumps(options)


def constants(x):
    return x + 1, pickle.dumps(("a", 1, -2.5, None, True, b"b", [2**40, ()], {"k": (3,), 4: {}}, ()))


def one_text_twice(x):
    return x + 1, pickle.dumps([TEXT, TEXT])


def one_list_twice(x):
    return x + 1, pickle.dumps([NUMBERS, NUMBERS])


def equal_tuples(x):
    pair = (x.shape[0], 5)
    return x + 1, pickle.dumps([pair, pair, (2, 5)])


def a_tensor(x):
    return x + 1, len(pickle.dumps(x)) > 10


def with_a_protocol(x):
    return x + 1, pickle.dumps(1, protocol=2)


WHOLE = (keywords, constants)


@pytest.mark.parametrize("program", [*WHOLE, one_text_twice, one_list_twice, equal_tuples, a_tensor, with_a_protocol])
def test_the_bytes_are_eagers(program):
    run, said = compiled(program)
    options = {"diag": True, "other": "text", "third": [1, "x"]} if program is keywords else {}
    for given in ({}, options):
        assert run(torch.ones(2), **given)[1] == program(torch.ones(2), **given)[1]
    assert bool(said.breaks) == (program not in WHOLE)


class Thing:
    pass


DATA = pickle.dumps({"a": [1, 2.5, None, "text", b"x"], (1, 2): {"deep": [[], ()]}})
TWICE = pickle.dumps([NUMBERS, NUMBERS])
THING = pickle.dumps(Thing())
BROKEN = DATA[:-3]


def round_trip(x):
    loaded = pickle.loads(pickle.dumps({"a": [1, 2], "b": (3, "x")}))
    loaded["a"].append(4)
    return x * loaded["a"][1], loaded


def from_outside(x):
    return x + 1, pickle.loads(DATA)


def one_list_twice_loaded(x):
    found = pickle.loads(TWICE)
    return x + 1, found[0] is found[1]


def an_instance(x):
    return x + 1, type(pickle.loads(THING))


def malformed(x):
    try:
        return x + 1, pickle.loads(BROKEN)
    except Exception as error:
        return x + 2, str(error)


WHOLE_LOADS = (round_trip, from_outside)


@pytest.mark.parametrize("program", [*WHOLE_LOADS, one_list_twice_loaded, an_instance, malformed])
def test_what_is_loaded_is_eagers(program):
    run, said = compiled(program)
    for _ in range(2):
        found, expected = run(torch.ones(2)), program(torch.ones(2))
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
    assert bool(said.breaks) == (program not in WHOLE_LOADS)
