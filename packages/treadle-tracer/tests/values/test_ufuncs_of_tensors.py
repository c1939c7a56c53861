"""NumPy's universal functions of tensors give tensors, as in eager, with NumPy's warnings."""

from __future__ import annotations

import warnings

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy")


def logarithm(x):
    return np.log(x)


def of_numbers_without_dimensions(x):
    """As diffusers' multistep schedulers integrate."""
    t, b, c = x[0, 0], x[0, 1], x[1, 0]
    return t * (-np.log(c) + np.log(t) - 1) / (np.log(b) - np.log(c))


def beside_an_array(x):
    return np.add(x, np.arange(3)), np.multiply(np.float64(2.0), x), np.maximum(1, x)


def truth(x):
    return np.isfinite(x), np.greater(x, 1.0)


def with_a_dtype(x):
    return np.sqrt(x, dtype=np.float64)


def of_integers(x):
    n = x.long()
    return np.add(n, n), np.negative(n)


def of_a_parameter(x):
    with torch.no_grad():
        return np.exp(torch.nn.Parameter(x).detach())


def into_an_array(x):
    out = np.zeros((3, 3), np.float32)
    np.exp(x, out=out)
    return out


def of_a_leaf(x):
    try:
        return np.exp(x.requires_grad_())
    except RuntimeError as error:
        return repr(error)


WHOLE = (logarithm, of_numbers_without_dimensions, beside_an_array, truth, with_a_dtype, of_integers)
BROKEN = (of_a_parameter, into_an_array, of_a_leaf)


def run(function):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        results = function(torch.arange(1.0, 10.0).reshape(3, 3))
    return results, [(str(w.message), w.category, w.filename, w.lineno) for w in seen]


@pytest.mark.parametrize("program", [*WHOLE, *BROKEN], ids=lambda f: f.__name__)
def test_like_eager(program):
    expected, warned = run(program)
    fast, recorder = compiled(program)
    for _ in range(2):
        results, seen = run(fast)
        assert seen == warned
        for mine, theirs in zip(*(r if type(r) is tuple else (r,) for r in (results, expected)), strict=True):
            assert type(mine) is type(theirs)
            if isinstance(mine, torch.Tensor):
                torch.testing.assert_close(mine, theirs)
                assert mine.stride() == theirs.stride() and not mine.requires_grad
            else:
                assert repr(mine) == repr(theirs)
    if program in WHOLE:
        assert len(recorder.graphs) == 1 and not recorder.breaks
