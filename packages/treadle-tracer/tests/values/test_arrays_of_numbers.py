"""Arrays that are made of numbers which differ from call to call: as eager's, and made by one graph."""

from __future__ import annotations

import pytest
import torch
from array_programs import look
from compile_runs import compiled, item, whole

np = pytest.importorskip("numpy", "2.0")

PROGRAMS = {
    "mean": lambda x, numbers: np.mean(numbers),
    "deviation": lambda x, numbers: np.std(numbers),
    "sum and maximum": lambda x, numbers: (np.sum(numbers), np.max(numbers)),
    "array": lambda x, numbers: np.asarray(numbers),
    "of another dtype": lambda x, numbers: np.array(numbers, dtype=np.float32),
    "among constants": lambda x, numbers: np.array([numbers[0], 1, 2.5, True]),
    "rows": lambda x, numbers: np.array([numbers, [1, 2, 3]]),
    "rows of one": lambda x, numbers: np.array([[number] for number in numbers]),
    "one number": lambda x, numbers: np.asarray(numbers[0]) + np.ones(2),
    "scalars of NumPy": lambda x, numbers: np.mean([np.float64(number) for number in numbers]),
    "written to": lambda x, numbers: np.add(np.asarray(numbers), 1, out=np.zeros(3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_floats_that_change_recompile_once(name):
    def run(x, numbers):
        return x * 2, PROGRAMS[name](x, numbers)

    fast, said = compiled(run)
    for seed in range(6):
        numbers = torch.rand(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
        x = torch.ones(2)
        (doubled, found), (expected_doubled, expected) = fast(x, numbers), run(x, numbers)
        assert torch.equal(doubled, expected_doubled)
        assert look(found) == look(expected)
    assert len(said.graphs) == 2 and said.breaks == []


def test_the_mean_of_losses_behind_a_break():
    def run(x):
        losses = []
        for k in range(3):
            losses.append(item((x * k).sum()))
        return x + 1, np.mean(losses), {"loss": np.mean(losses[:2])}

    fast, said = compiled(run)
    found = [fast(torch.full((2,), float(k))) for k in range(9)]
    for k, (plus, mean, named) in enumerate(found):
        assert torch.equal(plus, torch.full((2,), k + 1.0))
        assert look([mean, named["loss"]]) == look([np.float64(2.0 * k), np.float64(k)])
    graphs = len(said.graphs)
    fast(torch.full((2,), 20.0))
    assert len(said.graphs) == graphs and said.skips == []


def test_arrays_of_sizes_are_constants():
    def run(x):
        return x.reshape(int(np.prod([x.shape[0], x.shape[1]])))

    fast, said = compiled(run, fullgraph=True)
    for rows in (2, 3, 5):
        assert fast(torch.ones(rows, 2)).shape == (rows * 2,)


SHAPES = {
    "product of a list": lambda x: x.reshape(x.shape[0], 1 * np.prod([n for n in x.shape[1:]])),
    "product of a tuple": lambda x: x.reshape(np.prod(x.shape)),
    "product of constants": lambda x: x[:, :1].reshape(-1, np.prod([2, 2])),
    "product of scalars": lambda x: x.reshape(np.prod([np.prod(x.shape), np.int64(1)])),
    "sum": lambda x: torch.zeros(np.sum([x.shape[0], x.shape[1], 1])),
    "largest": lambda x: torch.zeros(np.max([x.shape[0], x.shape[1]]), np.min(x.shape)),
    "scalars": lambda x: (x * 2, np.prod(x.shape), np.sum([*x.shape, 3]), np.max(x.shape), np.min([x.shape[0]])),
}


@pytest.mark.parametrize("name", SHAPES)
def test_reductions_of_sizes_are_sizes(name):
    fast, said = compiled(SHAPES[name], fullgraph=True)
    for rows in (2, 3, 5, 7, 3):
        x = torch.arange(rows * 16.0).reshape(rows, 4, 4)
        found, expected = fast(x), SHAPES[name](x)
        if isinstance(found, tuple):
            assert [type(number) for number in found[1:]] == [type(number) for number in expected[1:]]
            assert found[1:] == expected[1:]
            found, expected = found[0], expected[0]
        assert torch.equal(found, expected)
    assert len(said.graphs) == 2


def test_the_product_of_an_array_of_constants_is_a_size():
    def run(x):
        return x.reshape(np.prod(np.array([2, 3]))) * 2

    fast, _ = compiled(run, fullgraph=True)
    assert torch.equal(fast(torch.ones(2, 3)), torch.full((6,), 2.0))


@pytest.mark.parametrize("number", [2**30, 2**40, 2**62, -(2**63), 2**64])
def test_reductions_of_large_numbers_wrap_around(number):
    def run(x, numbers):
        return x * 2, np.prod(numbers), np.sum(numbers), np.max(numbers)

    fast, _ = compiled(run)
    for numbers in ([2, 3, 5], [4, 5, 6], [number, 7, number], [number, number + 1, number], [True, 2, 3], [0.5, 1, 2]):
        found, expected = fast(torch.ones(2), numbers), run(torch.ones(2), numbers)
        assert look(found[1:]) == look(expected[1:])


def test_rows_of_different_lengths_are_refused():
    def run(x, numbers):
        return x + np.array([numbers, numbers[:2]])

    fast, _ = compiled(run)
    for seed in range(3):
        numbers = torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()
        with pytest.raises(ValueError, match="inhomogeneous shape") as expected:
            run(torch.ones(2), numbers)
        with pytest.raises(ValueError, match="inhomogeneous shape") as found:
            fast(torch.ones(2), numbers)
        assert str(found.value) == str(expected.value)


def test_many_numbers_are_left_to_numpy():
    def run(x, numbers):
        return x * 2, np.mean(numbers)

    fast, said = compiled(run)
    for seed in range(5):
        numbers = torch.rand(300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()
        assert look(fast(torch.ones(2), numbers)[1]) == look(np.mean(numbers))
    assert len(said.graphs) <= 4


# ---- arrays without dimensions


def _written(x):
    array = np.array(8)
    other = array
    other += 1
    array[...] = array * 2
    return x * 2, array, other


def _of_a_tensor(x):
    array = np.array(8.5)
    return torch.from_numpy(array).sin() + x, array, isinstance(array, np.ndarray), array.ndim


@pytest.mark.parametrize("program", [_written, _of_a_tensor])
def test_an_array_of_a_constant_is_a_new_one_at_every_call(program):
    """It is no scalar: the program may write to it."""
    run, said = compiled(program)
    x = torch.ones(2)
    first = run(x)
    first[1][...] = 99
    second, expected = run(x), program(x)
    assert torch.equal(second[0], expected[0]) and second[2:] == expected[2:]
    assert type(second[1]) is np.ndarray and second[1] == expected[1] and second[1].dtype == expected[1].dtype
    whole(said)


def _divided(x):
    return x / (np.array(x.shape[1]) / 2).item()


def _sized(x):
    return torch.from_numpy(np.array(x.shape[1])) * x, x[:, : int(np.array(x.shape[1])) - 1]


def _converted(x):
    return torch.as_tensor(np.asarray(x.shape[1], dtype=np.float32)) * x, float(np.array(x.shape[1]))


@pytest.mark.parametrize("program", [_divided, _sized, _converted])
def test_an_array_of_a_size_serves_all_sizes(program):
    run, said = compiled(program)
    for columns in (4, 5, 6, 7):
        x = torch.randn(3, columns)
        torch.testing.assert_close(run(x), program(x), rtol=0, atol=0)
    assert not said.codes() and len(said.graphs) == 2
