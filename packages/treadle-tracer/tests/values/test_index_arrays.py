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
