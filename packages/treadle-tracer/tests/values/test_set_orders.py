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


SEEN = set(NAMES)


class Registry:
    """It makes a new state for each question, as some libraries do."""

    def __init__(self):
        self.seen = {object() for _ in range(20)} | SEEN

    def copied(self, x):
        seen = set()
        seen.update(self.seen)
        seen.add("another")
        seen.discard(NAMES[3])
        self.seen = seen
        return x * 2

    def made_by_copy(self, x):
        self.seen = self.seen.copy()
        return x * len(self.seen)

    def made_by_class(self, x):
        seen = set(self.seen)
        seen |= {1, 2}
        self.seen = seen
        return x * 2


@pytest.mark.parametrize("method", ["copied", "made_by_copy", "made_by_class"])
def test_a_copy_of_a_set_from_outside_iterates_as_in_python(method):
    x = torch.ones(2)
    registry, expected = Registry(), Registry()
    registry.seen, expected.seen = SEEN, SEEN
    run, said = compiled(getattr(Registry, method))
    for _ in range(4):
        assert torch.equal(run(registry, x), getattr(Registry, method)(expected, x))
        assert list(registry.seen) == list(expected.seen)
    assert not said.codes() and not said.skips
    assert registry.seen is not SEEN and len(SEEN) == len(NAMES)


def test_a_copy_of_a_set_that_changes_behind_it():
    def program(x, given):
        copied = set()
        copied.update(given)
        given.add("another")
        return x * 2, copied

    run, _ = compiled(program)
    for _ in range(3):
        given, expected = set(NAMES), set(NAMES)
        assert list(run(torch.ones(2), given)[1]) == list(program(torch.ones(2), expected)[1])
        assert list(given) == list(expected)
