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
