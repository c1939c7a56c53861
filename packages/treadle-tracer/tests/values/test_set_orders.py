"""The order in which a set iterates that the program has filled from dicts and their views."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

NAMES = [f"name{i}" for i in range(40)]


def updated_with_keys(x, given):
    chosen = set()
    chosen.update({name: i for i, name in enumerate(given) if i % 3}.keys())
    return x * 2, list(chosen)


def updated_with_dict(x, given):
    chosen = {"first", "second"}
    chosen.update(dict.fromkeys(given, 1))
    return x * 2, list(chosen)


def popped_from_dict(x, given):
    kept, dropped = dict(given), set()
    dropped.update(key for key in given if key.endswith("1"))
    dropped.update(given.keys())
    for key in dropped:
        kept.pop(key, None)
        if len(kept) < 4:
            break
    return x * 2, list(kept)


def united_with_values(x, given):
    return x * 2, list({"first", "second"}.union({name: name + "!" for name in given}.values()))


def cut_by_dict(x, given):
    return (
        x * 2,
        list(set(given).difference(dict.fromkeys(NAMES[::2]))),
        list(set(given).intersection({NAMES[5]: 1, NAMES[1]: 2})),
    )


def updated_with_itself(x, given):
    chosen = set(given)
    chosen.symmetric_difference_update(dict.fromkeys(NAMES[10:30]))
    chosen.difference_update(dict.fromkeys(NAMES[::5]).keys())
    return x * 2, list(chosen)


PROGRAMS = [
    updated_with_keys,
    updated_with_dict,
    popped_from_dict,
    united_with_values,
    cut_by_dict,
    updated_with_itself,
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("count", [3, 9, 40])
def test_sets_iterate_as_in_eager(program, count):
    fast, said = compiled(program)
    for names in (NAMES[:count], NAMES[:count], NAMES[:count][::-1], NAMES[count // 2 :]):
        given = dict.fromkeys(names, 0)
        got, want = fast(torch.ones(2), given), program(torch.ones(2), given)
        assert got[1:] == want[1:]
        assert torch.equal(got[0], want[0])
    assert not said.breaks and not said.skips
