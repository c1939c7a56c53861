"""Tensors indexed by arrays of NumPy."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy", "2.0")

X = torch.arange(30.0).view(10, 3)


def written(x, rows):
    y = x.clone()
    y[rows] = 2
    y[rows, 1] *= 3
    return y


def minibatches(x, rows):
    return [x[rows[start : start + 2]].sum(0) for start in range(0, 4, 2)]


PROGRAMS = {
    "rows": lambda x, rows: x[rows],
    "elements": lambda x, rows: (x[rows, 0], x[None, rows], x[..., rows % 3]),
    "beside a tensor": lambda x, rows: x[rows[:, None], torch.arange(3)],
    "other integers": lambda x, rows: (x[rows.astype(np.int32)], x[rows.astype(np.int8)]),
    "truth values": lambda x, rows: x[np.arange(10) > 4],
    "one row": lambda x, rows: (x[rows[1]], x[rows[0], 2]),
    "computed": lambda x, rows: x[np.sort(rows)[:2]],
    "written": written,
    "minibatches": minibatches,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name):
    program = PROGRAMS[name]
    fast, said = compiled(program, fullgraph=True)
    for seed in range(4):
        rows = np.random.RandomState(seed).permutation(10)[: 4 + seed]
        found, expected = fast(X, rows), program(X, rows)
        for one, other in (
            zip(found, expected, strict=True) if isinstance(expected, (tuple, list)) else [(found, expected)]
        ):
            assert torch.equal(one, other) and one._is_view() == other._is_view() and one.stride() == other.stride()
    assert len(said.graphs) <= 2


@pytest.mark.parametrize("kind", ("uint8", "float32", "without dimensions"))
def test_other_arrays_are_left_to_python(kind):
    def f(x, key):
        return x[key] + 1

    key = np.array(1) if kind == "without dimensions" else np.array([1, 0, 1], kind)
    fast, _ = compiled(f)
    for x in (X[:3], X[3:6]):
        try:
            expected = f(x, key)
        except IndexError as error:
            with pytest.raises(IndexError) as found:
                fast(x, key)
            assert str(found.value) == str(error)
        else:
            assert torch.equal(fast(x, key), expected)


def test_positions_out_of_range():
    def f(x, rows):
        return x[rows]

    fast, _ = compiled(f)
    assert torch.equal(fast(X, np.array([1, 2])), X[1:3])
    with pytest.raises(IndexError) as expected:
        f(X, np.array([1, 10]))
    with pytest.raises(IndexError) as found:
        fast(X, np.array([1, 10]))
    assert str(found.value) == str(expected.value)
    assert torch.equal(fast(X, np.array([-1, 2])), X[[-1, 2]])


def windows(x):
    """Parts of a tensor of any size, as in sliding windows."""
    sizes = np.array(x.shape)
    starts = np.maximum(sizes - 3, 0) // 2
    return x[starts[0] : starts[0] + 2], x[:, starts[1] :]


def tiles(x):
    """Parts at positions that an array of constants holds."""
    rows, columns = np.meshgrid(np.arange(0, 4, 2), np.arange(0, 3), indexing="ij")
    return [x[a : a + 2, slice(b, b + 1)] for a, b in zip(rows.ravel(), columns.ravel(), strict=True)]


def written_window(x):
    y = x.clone()
    stop = np.array(x.shape)[0] - np.int32(1)
    y[1:stop] = 7
    return y


@pytest.mark.parametrize("program", (windows, tiles, written_window))
def test_integers_that_bound_slices(program):
    fast, said = compiled(program, fullgraph=True)
    for rows, columns in ((10, 5), (10, 6), (12, 7), (15, 9)):
        x = torch.arange(float(rows * columns)).view(rows, columns)
        found, expected = fast(x), program(x)
        for one, other in (
            zip(found, expected, strict=True) if isinstance(expected, (tuple, list)) else [(found, expected)]
        ):
            assert torch.equal(one, other) and one._is_view() == other._is_view() and one.stride() == other.stride()
    assert len(said.graphs) <= 4


@pytest.mark.parametrize("kind", ("float64", "bool"))
def test_what_bounds_no_slice_is_refused_as_in_eager(kind):
    def f(x):
        stop = (np.array(x.shape) > 0 if kind == "bool" else np.array(x.shape) / 2)[0]
        return x[:stop] + 1

    fast, _ = compiled(f)
    for x in (X, X[:4]):
        with pytest.raises(TypeError, match="slice indices must be integers") as expected:
            f(x)
        with pytest.raises(TypeError) as found:
            fast(x)
        assert str(found.value) == str(expected.value)
