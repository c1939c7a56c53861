"""NumPy's scalars: the same results as in eager, and no compile for each new value."""

from __future__ import annotations

import math

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy")

LIFTED = {
    "product": lambda x, s: x * s,
    "reflected": lambda x, s: s - x,
    "argument of a call": lambda x, s: torch.add(x, x, alpha=s),
    "filled": lambda x, s: torch.full((2,), s),
    "item": lambda x, s: x * s.item(),
    "python number": lambda x, s: x * float(s),
    "as_tensor of another dtype": lambda x, s: torch.as_tensor(s, dtype=torch.float64) + x,
    "returned": lambda x, s: (x + 1, s),
    "power": lambda x, s: s**x,
}
ARITHMETIC = {
    "sum": lambda x, s: x * (s + 1),
    "difference": lambda x, s: (x + 1, 2.5 - s),
    "square": lambda x, s: (x + 1, s * s),
    "quotient": lambda x, s: (x + 1, s / 4),
    "negative": lambda x, s: (x + 1, -s),
    "power of a float64": lambda x, s: (x + 1, np.float64(s) ** 2, np.float64(s) ** 0.5),
    "tensor": lambda x, s: torch.tensor(s) * x,
    "comparison": lambda x, s: (x + 1, s > 0, s == s),
    "branch": lambda x, s: x + 1 if s > 0 else -x,
    "truth": lambda x, s: x + 1 if s else -x,
}
OTHER = {
    "remainder": lambda x, s: (x, s % 2, s // 2),
    "math": lambda x, s: (x, math.sqrt(s), math.floor(s)),
    "ufunc": lambda x, s: x * np.cos(s),
    "text": lambda x, s: (x, f"{s}", str(s), repr(s), f"{s:.2f}"),
    "dtype": lambda x, s: (x, s.dtype, s.shape),
    "conversion": lambda x, s: (x, np.float32(s), np.int64(s), complex(s)),
    "tensor of a list": lambda x, s: torch.tensor([s, s]),
    "as_tensor": lambda x, s: torch.as_tensor(s),
    "equality with a tensor": lambda x, s: x == s,
    "other scalars": lambda x, s: (x, s * np.float32(2), s + True),
    "key": lambda x, s: (x, {s: 1}[s], hash(s)),
    "kind": lambda x, s: (x, isinstance(s, float), isinstance(s, np.generic), type(s)),
}


def _look(value):
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), [repr(item) for item in value.flatten().tolist()]
    return [_look(item) for item in value] if isinstance(value, tuple) else (type(value), repr(value))


def _outcome(function, x, s):
    try:
        return _look(function(x, s))
    except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        return type(error), str(error)


def _compare(function, scalars):
    fast, recorder = compiled(function)
    for s in scalars:
        x = torch.tensor([1.0, 2.0, -3.0])
        assert _outcome(fast, x.clone(), s) == _outcome(function, x.clone(), s), s
    return recorder


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.int32])
@pytest.mark.parametrize("function", LIFTED.values(), ids=LIFTED)
def test_numbers_that_change_are_lifted(function, kind):
    recorder = _compare(function, [kind(number) for number in (2, 3, 4, 7, 11)])
    assert len(recorder.entries) == 2 and not recorder.breaks


@pytest.mark.parametrize("kind", [np.float64, np.int64])
@pytest.mark.parametrize("function", ARITHMETIC.values(), ids=ARITHMETIC)
def test_arithmetic_of_lifted_numbers(function, kind):
    recorder = _compare(function, [kind(number) for number in (2, 3, 4, 7, 11)])
    assert len(recorder.entries) == 2 and not recorder.breaks


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("function", (LIFTED | ARITHMETIC | OTHER).values(), ids=[*LIFTED, *ARITHMETIC, *OTHER])
def test_every_value_gives_what_eager_gives(function, kind):
    numbers = [2, 1.5, 0, 1, 5] if kind is np.uint8 else [2, 1.5, 0, -0.0, -3, 1e300, math.inf, math.nan, 2.1]
    if issubclass(kind, np.integer):
        numbers = [n for n in numbers if math.isfinite(n) and abs(n) < 2**62]
    with np.errstate(all="ignore"):
        _compare(function, [kind(number) for number in numbers])


def test_one_scalar_at_two_places_becomes_two():
    class State:
        pass

    state = State()
    state.a = state.b = np.float64(2.5)
    fast, recorder = compiled(lambda x: x * state.a + state.b)
    for step in range(6):
        state.a, state.b = np.float64(step + 0.5), np.float64(step - 7)
        assert fast(torch.ones(1)).item() == state.a + state.b
    assert len(recorder.entries) <= 3


def test_a_warning_of_numpy_comes_at_every_call():
    def function(x, s):
        return x, s * 1e200

    fast, _ = compiled(function)
    for number in (1.5, 2.5, 3.5):
        fast(torch.ones(1), np.float64(number))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="overflow"):
            assert fast(torch.ones(1), np.float64(1e200))[1] == math.inf


def test_ints_are_compared_and_divided_as_floats():
    def run(n, x):
        return n == x, n < x, n > x, n / np.int64(3), x >= n

    run_compiled = compiled(run)[0]
    for n, x in ((1, 2.0), (3, 3.0), (2**53 + 1, 2.0**53), (2**53 + 3, 2.0**53 + 4), (2**62 + 1, 2.0**62), (4, 4.5)):
        given = np.int64(n), np.float64(x)
        assert _look(run_compiled(*given)) == _look(run(*given))


def test_slices_between_numbers_of_numpy():
    def program(x, start, stop):
        array = x.numpy()
        return x[start:stop] * 2, x[..., start:], array[start:stop] + 1, array[:stop:start]

    run, recorder = compiled(program)
    for start, stop in ((np.int64(1), np.int64(3)), (np.int32(2), np.uint8(4)), (np.int64(1), np.int64(4))):
        found, expected = run(torch.arange(8.0), start, stop), program(torch.arange(8.0), start, stop)
        assert [list(part) for part in found] == [list(part) for part in expected]
    assert not recorder.breaks


def test_a_slice_between_numbers_of_numpy_is_stored_to():
    def program(x, start):
        x[start : start + np.int64(2)] = 5
        return x

    run, _ = compiled(program)
    for start in (np.int64(1), np.int64(3), np.int64(2)):
        assert torch.equal(run(torch.arange(8.0), start), program(torch.arange(8.0), start))
