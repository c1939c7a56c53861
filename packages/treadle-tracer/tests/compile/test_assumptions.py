"""What operators ask about sizes that only the data can tell is assumed, and Python runs the program where it does not hold."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from compile_runs import compiled

import treadle_frame
from treadle_tracer import Unsupported

SOME, ALL, NONE, ONE = (
    torch.tensor(v) for v in ([1.0, -2.0, 3.0], [1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [-1.0, 2.0, -3.0])
)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="treadle: the compiled graph")
        yield


def rolled(x):
    return torch.roll(x[x > 0], 1, 0)


@pytest.mark.parametrize(
    "function",
    [
        rolled,
        lambda x: x[x > 0].squeeze(),
        lambda x: x[x > 0].squeeze(0),
        lambda x: x[x > 0].clone().squeeze_(-1),
        lambda x: torch.squeeze(x[x > 0], dim=0),
        lambda x: torch.squeeze(x[x > 0][None]),
        lambda x: x[x > 0][:, None].squeeze(1),
        lambda x: F.max_pool1d(x[x > 0][None], 2, padding=1),
        lambda x: torch.linspace(0, 1, x[x > 0].shape[0]),
    ],
)
def test_one_graph_and_the_results_of_python(function):
    fast, recorder = compiled(function, fullgraph=True)
    for x in (SOME, ALL, NONE, ONE):
        try:
            expected = function(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                fast(x)
            continue
        found = fast(x)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)
    assert len(recorder.graphs) == 1 and not recorder.breaks


def test_a_branch_of_the_program_assumes_nothing():
    def chosen(x):
        y = x[x > 0]
        return y * 2 if y.shape[0] == 3 else y

    fast, _ = compiled(chosen, fullgraph=True)
    with pytest.raises(Unsupported, match=r"shape\[0\] == 3` is asked"):
        fast(SOME)


@pytest.mark.parametrize("assume", [True, False])
def test_nothing_is_assumed_where_python_cannot_run_the_program(assume):
    def written(x):
        x.add_(1)
        return rolled(x)

    function = written if assume else rolled  # a write, or the option
    fast, recorder = compiled(function, capture_scalars=True, assume=assume)
    for x in (SOME, NONE - 1, ONE):
        mine, own = x.clone(), x.clone()
        torch.testing.assert_close(fast(mine), function(own))
        torch.testing.assert_close(mine, own)
    assert "unbacked-decision" in recorder.codes()
    fast, _ = compiled(function, fullgraph=True, assume=assume)
    with pytest.raises(Unsupported, match=r"shape\[0\] == 0` is asked"):
        fast(SOME.clone())


def test_what_a_call_asks_inside_itself_is_not_assumed():
    with torch.library._scoped_library("treadle_assumptions", "DEF") as library:
        library.define("total(Tensor x) -> Tensor")
        library.impl("total", lambda x: torch.roll(x[x > 0], 1, 0).sum(), "CompositeImplicitAutograd")
        total = torch.ops.treadle_assumptions.total
        fast, recorder = compiled(lambda x: total(x) + 1, capture_scalars=True)
        for x in (SOME, NONE):
            torch.testing.assert_close(fast(x), total(x) + 1)
        assert recorder.codes() == ["data-dependent"]


def test_random_numbers_are_drawn_once():
    def noisy(x):
        noise = torch.rand(3)
        return torch.roll(x[x > 0], 1, 0).sum() + noise

    fast, recorder = compiled(noisy, fullgraph=True)
    for x in (SOME, NONE, ONE, NONE):
        torch.manual_seed(5)
        expected = noisy(x), torch.rand(2)
        torch.manual_seed(5)
        found = fast(x), torch.rand(2)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert len(recorder.graphs) == 1


def test_the_run_of_python_is_not_compiled():
    def inner(x):
        return x[x > 0]

    def outer(x):
        return torch.roll(inner(x), 1, 0)

    fast, recorder = compiled(outer, fullgraph=True)
    for x in (SOME, NONE, NONE):
        torch.testing.assert_close(fast(x), outer(x))
    assert len(recorder.graphs) == len(recorder.entries) == 1
    assert treadle_frame.get_handler() is None


def test_the_hook_is_as_before_after_an_exception():
    def largest(x):
        return torch.roll(x[x > 0], 1, 0).max()

    def caller(x):
        try:
            fast(x)
        except RuntimeError:
            pass
        return treadle_frame.get_handler()

    fast, _ = compiled(largest, fullgraph=True)
    handler = treadle_frame.set_handler(treadle_frame.RUN_CACHED)
    try:
        fast(SOME)
        assert caller(NONE) is treadle_frame.RUN_CACHED
    finally:
        treadle_frame.set_handler(handler)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool1d(x, 2, padding=1),
        lambda x: torch.linspace(0, 1, x.shape[-1]) + x,
        lambda x: torch.logspace(0, 1, x.shape[-1], base=2.0, dtype=torch.float64) + x,
        lambda x: torch.take_along_dim(x, x.argmax(-1, keepdim=True), -1) * 2,
    ],
)
def test_functions_of_plain_numbers_take_sizes_that_change(function):
    fast, recorder = compiled(function, fullgraph=True)
    for length in (5, 6, 9, 4, 12):
        x = torch.randn(2, length, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(fast(x), function(x))
    assert len(recorder.graphs) == 2


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7])
def test_linspace_ends_where_it_should(steps):
    def spaced(n):
        return torch.linspace(-3, 7.5, n.item()), torch.linspace(0, 1, n.item(), dtype=torch.float64)

    fast, _ = compiled(spaced, fullgraph=True)
    for found, expected in zip(fast(torch.tensor(steps)), spaced(torch.tensor(steps)), strict=True):
        assert found.dtype == expected.dtype
        assert found[0] == expected[0] and found[-1] == expected[-1]
        torch.testing.assert_close(found, expected)


def test_integers_between_two_ends_stay_torch_s_own():
    def spaced(n):
        return torch.linspace(0, 10, n.item(), dtype=torch.int64)

    fast, _ = compiled(spaced, capture_scalars=True)
    assert torch.equal(fast(torch.tensor(4)), spaced(torch.tensor(4)))


@pytest.mark.parametrize("labels", [[0, 2, 1], [0], [3, 3], [-1, 2], [2, 7]])
def test_one_hot_refuses_what_eager_refuses(labels):
    def hot(i, n):
        return F.one_hot(i), F.one_hot(i, n.item())

    arguments = torch.tensor(labels), torch.tensor(5)
    fast, _ = compiled(hot, fullgraph=True)
    try:
        expected = hot(*arguments)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            fast(*arguments)
    else:
        for found, want in zip(fast(*arguments), expected, strict=True):
            assert torch.equal(found, want) and found.dtype == want.dtype


# ---- without being asked: `capture_scalars=None`


def test_sizes_stay_in_the_graph_by_default():
    fast, recorder = compiled(lambda x: (x[x > 0] * 2, (x > 0).nonzero(), torch.unique(x)))
    for x in (SOME, ALL, NONE, ONE, SOME):
        for one, other in zip(fast(x), (x[x > 0] * 2, (x > 0).nonzero(), torch.unique(x)), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()
    assert len(recorder.graphs) == 1 and not recorder.breaks


def test_what_fails_often_is_not_assumed_any_more_and_nobody_is_told():
    fast, recorder = compiled(rolled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            for x in (SOME, NONE, ONE):
                assert torch.equal(fast(x), rolled(x))
    assert len(recorder.graphs) > 1 and recorder.breaks


def test_by_default_nothing_is_checked_where_python_cannot_run_the_program():
    def written(x, n):
        x.add_(1)
        torch._check(n.item() > 1)
        return x.new_ones(n.item()), x[x > 0]

    fast, _ = compiled(written)
    for n in (3, 2, 5):
        mine, own = SOME.clone(), SOME.clone()
        for one, other in zip(fast(mine, torch.tensor(n)), written(own, torch.tensor(n)), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(mine, own)
    for function in (fast, written):
        x = SOME.clone()
        with pytest.raises(RuntimeError):
            function(x, torch.tensor(0))
        assert torch.equal(x, SOME + 1)


def test_captured_sizes_can_be_turned_off():
    fast, recorder = compiled(lambda x: x[x > 0] * 2, capture_scalars=False)
    assert torch.equal(fast(SOME), SOME[SOME > 0] * 2)
    assert recorder.codes() == ["data-dependent"]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (), (0, 2)])
def test_one_hot_of_a_known_number_of_classes_asks_for_no_values(shape):
    """As a call in the graph it would read its labels, which backends that run on fake tensors cannot."""

    def hot(i):
        return F.one_hot(i, 7), F.one_hot(i.t(), num_classes=7)

    labels = torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(0))
    fast, seen = compiled(hot)
    for found, want in zip(fast(labels), hot(labels), strict=True):
        assert torch.equal(found, want) and (found.dtype, found.stride()) == (want.dtype, want.stride())
    assert len(seen.graphs) == 1
    assert not seen.graphs[0].graph.find_nodes(op="call_function", target=F.one_hot)


@pytest.mark.parametrize("labels", [[-1, 2], [2, 7]])
def test_one_hot_of_a_known_number_of_classes_refuses_others(labels):
    fast, _ = compiled(lambda i: F.one_hot(i, 5))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Class values must be"):
            fast(torch.tensor(labels))
