"""Functions under `functools.lru_cache` of sizes that change: evaluated in place only where nobody can tell."""

from __future__ import annotations

import functools

import pytest
import torch
from compile_runs import compiled

SCALE = 2


@functools.lru_cache(64)
def _halves(shape, parts):
    if shape[0] % parts:
        raise ValueError("does not divide")
    return [parts, shape[0] // parts], {"rest": shape[1]}, max(shape)


@functools.lru_cache
def _scaled(n):
    return n * SCALE


@functools.lru_cache
def _counted(n):
    CALLS.append(n)
    return n + 1


@functools.lru_cache
def _listed(n):
    return [n, n + 1]


@functools.lru_cache
def _through(n):
    return _helper(n) + 1


def _helper(n):
    return n * 2


CALLS: list[int] = []


def test_sizes_stay_dynamic():
    def program(x):
        shape, sizes, largest = _halves(x.shape, 2)
        return x.reshape(*shape, -1) * largest + sizes["rest"] + _through(x.shape[1])

    run, said = compiled(program, fullgraph=True)
    for rows, columns in ((4, 3), (6, 5), (8, 7), (10, 9)):
        x = torch.randn(rows, columns)
        assert torch.equal(run(x), program(x))
    assert len(said.graphs) == 2
    with pytest.raises(ValueError, match="does not divide"):
        compiled(program)[0](torch.randn(3, 5))


def test_a_number_stays_dynamic_behind_operators_on_tensors():
    def program(x, n):
        return (x * 2).relu() * _through(n)

    run, recorder = compiled(program)
    for n in range(2, 9):
        assert torch.equal(run(torch.ones(2), n), program(torch.ones(2), n))
    assert len(recorder.graphs) == 2 and not recorder.breaks


def test_what_is_read_besides_arguments_is_that_of_the_cache(monkeypatch):
    def program(x):
        return x + _scaled(x.shape[0])

    _scaled.cache_clear()
    run, _ = compiled(program)
    for rows in (2, 3, 4):
        run(torch.zeros(rows))
    monkeypatch.setattr(f"{__name__}.SCALE", 5)
    assert [run(torch.zeros(rows))[0].item() for rows in (2, 3, 4, 5)] == [4, 6, 8, 25]


def test_a_function_with_effects_runs_once_for_each_argument():
    def program(x):
        return x + _counted(x.shape[0])

    _counted.cache_clear()
    CALLS.clear()
    run, _ = compiled(program)
    for rows in (2, 3, 4, 3, 2, 4):
        assert torch.equal(run(torch.zeros(rows)), torch.full((rows,), rows + 1.0))
    assert CALLS == [2, 3, 4]


def test_a_list_in_the_cache_is_one_object():
    def changed(x):
        found = _listed(x.shape[0])
        found.append(1)
        return x + len(found)

    def given(x):
        return x + 1, _listed(x.shape[0])

    for program in (changed, given):
        _listed.cache_clear()
        run, _ = compiled(program)
        for count, rows in enumerate((2, 3, 4, 3, 4)):
            found = run(torch.zeros(rows))
            if program is changed:
                assert found[0] == (4 if count > 2 else 3)
            else:
                assert found[1] is _listed(rows)


def test_results_for_equal_arguments_are_one_object():
    def program(x, y):
        first, second = _listed(x.shape[0]), _listed(y.shape[0])
        return x.sum() + len(first) + (10 if first is second else 20), first is None

    _listed.cache_clear()
    run, _ = compiled(program, dynamic=True)
    for rows in ((2, 3), (3, 3), (4, 5), (4, 4)):
        inputs = [torch.zeros(size) for size in rows]
        assert run(*inputs) == program(*inputs)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_full_cache_drops_what_it_drops_in_eager(size):
    def made():
        calls = []

        @functools.lru_cache(size)
        def numbered(*args, **kwargs):
            calls.append((args, kwargs))
            return len(calls)

        return calls, lambda x: x + numbered(1) + 10 * numbered(2) + 100 * numbered(b=1) + 1000 * numbered(1)

    (calls, program), (expected_calls, eager) = made(), made()
    run, _ = compiled(program)
    for _ in range(3):
        assert torch.equal(run(torch.zeros(2)), eager(torch.zeros(2)))
        assert calls == expected_calls
