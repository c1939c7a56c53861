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


# ---- answers that keep differing


@functools.lru_cache(None)
def _table(n):
    return torch.arange(float(n)).sqrt()


@functools.lru_cache(None)
def _tensor_of_fixed_size(n):
    return torch.full((3,), float(n))


class _Positions:
    def __init__(self):
        self.rows = functools.lru_cache(None)(self._rows)

    def _rows(self, n):
        return torch.arange(float(n)) * SCALE

    def __call__(self, x):
        return x * self.rows(x.shape[0]) + 1


def _of_a_size(x):
    return (x.sin() + _table(x.shape[0])).relu().sum() + x.shape[0]


def _inside_a_call(x):
    return _of_a_size(x * 2) - x


def _in_a_loop(x):
    for size in (x.shape[0], x.shape[0] + 1):
        x = (x + _table(size)[: x.shape[0]]).cos()
    return x


def _of_a_number(x):
    return x + _scaled(x.shape[0]) * 2


def _twice(x):
    first, second = _table(x.shape[0]), _table(x.shape[0])
    return x * first, first is second


def _under_a_handler(x):
    try:
        return x + _halves((x.shape[0], SCALE), SCALE)[2] + _table(x.shape[0])
    except ValueError as error:
        return x.sum(), str(error)


_DIFFERING = [_of_a_size, _inside_a_call, _in_a_loop, _of_a_number, _twice, _under_a_handler, _Positions().__call__]


@pytest.mark.parametrize("program", _DIFFERING)
def test_answers_that_keep_differing_break_the_graph(program):
    """After a few sizes there is a break at the call, and no other size is compiled again."""
    _table.cache_clear()
    run, recorder = compiled(program)
    graphs = 0
    for rows in range(2, 28):
        x = torch.arange(float(rows))
        assert _same(run(x), program(x))
        if rows == 16:
            graphs = len(recorder.graphs)
    assert len(recorder.graphs) == graphs <= 12
    assert not recorder.skips


def _same(found, expected):
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return found == expected


def test_the_same_object_comes_out_of_the_cache_behind_a_break():
    def program(x):
        found = _tensor_of_fixed_size(x.shape[0])
        return found, x.sum() + found

    run, _ = compiled(program)
    for rows in (*range(2, 14), *range(2, 14)):
        found, _ = run(torch.ones(rows))
        assert found is _tensor_of_fixed_size(rows)


def test_what_the_program_writes_to_a_result_stays_in_the_cache():
    @functools.lru_cache(None)
    def buffer(n):
        return torch.zeros(n)

    def program(x):
        found = buffer(x.shape[0])
        found += x
        return found * 2

    run, _ = compiled(program)
    for rows in (*range(2, 12), *range(2, 12)):
        run(torch.ones(rows))
    assert all(torch.equal(buffer(rows), torch.full((rows,), 2.0)) for rows in range(2, 12))


def test_a_cache_that_is_cleared_breaks_the_graph():
    state = [1]

    @functools.lru_cache(None)
    def made(n):
        return torch.full((n,), float(state[0]))

    def program(x):
        return x.cos() + made(3)

    run, recorder = compiled(program)
    for turn in range(20):
        state[0] = turn
        made.cache_clear()
        assert torch.equal(run(torch.zeros(3)), program(torch.zeros(3)))
    assert not recorder.skips and len(recorder.graphs) <= 8


def test_a_few_answers_have_graphs_of_their_own():
    _table.cache_clear()
    run, recorder = compiled(_of_a_size)
    for rows in (4, 7, 9, 4, 7, 9, 7):
        run(torch.ones(rows))
    assert not recorder.breaks and len(recorder.graphs) == 3


def test_one_graph_is_made_for_each_answer_where_nothing_may_break():
    run, recorder = compiled(_of_a_size, fullgraph=True)
    for rows in range(2, 8):
        assert torch.equal(run(torch.ones(rows)), _of_a_size(torch.ones(rows)))
    assert not recorder.breaks and len(recorder.graphs) == 6


def test_constants_of_different_paths_do_not_count():
    def program(x, kind):
        return x + _table(kind)

    run, recorder = compiled(program, dynamic=False)
    for kind in (1, 2, 3, 4, 5):
        run(torch.ones(1), kind)
        program(torch.ones(1), kind)
    assert not recorder.breaks


class _Equation:
    """Hashed by what it holds, which the trace does not ask for."""

    def __init__(self, text):
        self.text = text

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return self.text == other.text


def _factor(letter):
    return torch.tensor(float(ord(letter))).sqrt()


@functools.lru_cache
def _planned(equation, scale):
    return sum(_factor(letter) for letter in equation.text) * scale


_planned_in_part = functools.lru_cache(functools.partial(_planned.__wrapped__, scale=3))


@pytest.mark.parametrize("planned", [lambda equation: _planned(equation, 2), _planned_in_part])
def test_functions_whose_results_are_cached_run_in_python_with_all_below(planned):
    """Each runs once: what is compiled of it or of its helpers serves no other call."""

    def program(x, equation):
        return (x + 1) * planned(equation)

    run, recorder = compiled(program)
    for text in ("abc", "abd", "abc"):
        assert torch.equal(run(torch.ones(2), _Equation(text)), program(torch.ones(2), _Equation(text)))
    assert len(recorder.breaks) == 1 and len(recorder.graphs) == 2
