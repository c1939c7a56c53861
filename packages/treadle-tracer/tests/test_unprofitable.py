"""Functions whose graphs cost more than they save are left to Python, with the results of eager before and after."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import torch
from compile_runs import Recorder, compiled, item, run_graph

import treadle_frame
from treadle_tracer import SkipKind, TracerOptions, compile_handler, optimize, unprofitable
from treadle_tracer.output.continuations import continuations_of


def small(x):
    x = x + 1
    if item(x.sum()) > 0:
        x = x * 2
    return x - 1


def large(x):
    for _ in range(20):
        x = torch.sin(x) * 2
    if item(x.sum()) > 1e9:
        x = x * 2
    for _ in range(20):
        x = torch.cos(x) + 1
    return x


def run(function, *sets, **options):
    """The recorder of a function that has been called with each set of arguments; results are eager's."""
    fn, recorder = compiled(function, leave_unprofitable=True, **options)
    for args in sets:
        torch.testing.assert_close(fn(*args), function(*args))
    return recorder


def left(recorder):
    return [name for name, skip in recorder.skips if skip.kind is SkipKind.UNPROFITABLE]


def test_small_pieces_are_left_to_python():
    x = torch.ones(4)
    recorder = run(small, *[(x,)] * 4)
    assert left(recorder) == ["small"]
    assert "too small" in str(recorder.skips[-1][1])
    assert len(recorder.graphs) == 2  # those of the first call


def test_the_original_code_runs_afterwards():
    fn, recorder = compiled(small, leave_unprofitable=True)
    x = torch.ones(4)
    for _ in range(3):
        fn(x)
    before = treadle_frame.counters()["handler_calls"]
    for _ in range(5):
        assert torch.equal(fn(x), small(x))
    assert treadle_frame.counters()["handler_calls"] == before
    assert [entry.payload.graph_module for entry in treadle_frame.entries(small)] == [None]


def test_without_the_option_all_is_compiled():
    fn, recorder = compiled(small)
    for _ in range(4):
        fn(torch.ones(4))
    assert not left(recorder)


def test_large_pieces_stay():
    x = torch.ones(4)
    recorder = run(large, *[(x,)] * 4)
    assert not left(recorder)


def test_a_piece_that_saves_much_pays_for_others():
    def f(x):
        x = x + 1
        if item(x.sum()) > 1e9:
            return x
        for _ in range(30):
            x = torch.sin(x) * 2
        return x

    assert not left(run(f, *[(torch.ones(4),)] * 4))


def test_pieces_are_weighed_by_their_runs():
    """One graph that is worth much runs once; a small one runs in every turn."""

    def f(x):
        for _ in range(3):
            x = torch.sin(x)
        for _ in range(40):
            x = x + 1
            item(x.sum())
        return x

    assert "f" in left(run(f, *[(torch.ones(4),)] * 4))


def test_larger_sizes_are_compiled():
    small_set, large_set = (torch.ones(4),), (torch.ones(1 << 20),)
    recorder = run(small, *[small_set] * 3, *[large_set] * 3, dynamic=False)
    assert left(recorder) == ["small"]
    assert len(recorder.graphs) == 4
    entries = treadle_frame.entries(small)
    assert sorted(entry.payload.is_left for entry in entries) == [False, True]


def test_dynamic_sizes_may_grow_up_to_a_factor_only():
    sizes = [4, 5, 6, 7, 20, 1 << 20, 1 << 20]
    recorder = run(small, *[(torch.ones(n),) for n in sizes])
    assert "small" in left(recorder)
    newest = treadle_frame.entries(small)[0]
    assert newest.payload.graph_module is not None


def test_functions_that_were_traced_in_place_are_left_as_well():
    def helper(x):
        return x * 3

    def f(x):
        x = helper(x)
        item(x.sum())
        return helper(x)

    run(f, *[(torch.ones(4),)] * 4)
    assert treadle_frame.is_skipped(helper)


def calls_small(x):
    return small(x) + 1


def calls_that_and_more(x):
    for _ in range(20):
        x = torch.sin(x) * 2
    return calls_small(x)


def test_small_pieces_below_a_call_are_pieces_of_the_caller():
    fn, recorder = compiled(calls_small, leave_unprofitable=True)
    for _ in range(4):
        assert torch.equal(fn(torch.ones(4)), calls_small(torch.ones(4)))
    assert left(recorder) == ["calls_small"]
    assert all(entry.payload.is_left for entry in treadle_frame.entries(calls_small))
    assert treadle_frame.is_skipped(small)


def test_pieces_below_a_call_stay_where_the_caller_gains_more():
    assert not left(run(calls_that_and_more, *[(torch.ones(4),)] * 4))


def test_a_function_that_computes_nothing_around_a_break_is_left():
    def choose(x, names):
        position = names.index("b")
        item(x)
        return names[position]

    fn, recorder = compiled(choose, leave_unprofitable=True)
    for _ in range(8):
        assert fn(torch.ones(()), ["a", "b"]) == "b"
    assert left(recorder) == ["choose"]


def test_graphs_behind_a_break_that_never_run_again_do_not_count():
    """What follows the break is compiled for a few lengths and then given up: the graph before it alone gains nothing."""

    def f(x, names):
        x = x + 1
        item(x.sum())
        for _ in range(60):
            x = torch.sin(x) * 2
        return x, "".join(names)

    fn, recorder = compiled(f, leave_unprofitable=True, recompile_limit=3)
    x = torch.ones(4)
    for n in range(12):
        names = [chr(97 + k) for k in range(n)]
        assert fn(x, names)[1] == f(x, names)[1]
    (member, *_) = [code for code in continuations_of(f.__code__) if treadle_frame.is_skipped(code)]
    assert member is not None and left(recorder) == ["f"]


def test_pieces_below_a_decorator_are_pieces_of_the_decorated_function():
    """The wrapper has the entry, which gains more than the calls that it goes on with; the turns of the loop cost more than that."""

    @torch.no_grad()
    def turns(x):
        y = x
        for _ in range(8):
            y = torch.sin(y) * 2
        for _ in range(40):
            x = x + 1
            if x.sum() > 1e9:
                break
        return x + y

    recorder = run(turns, *[(torch.ones(4),)] * 4)
    assert left(recorder) == ["decorate_context"]
    assert treadle_frame.is_skipped(turns.__wrapped__)


@pytest.mark.parametrize("leave", [False, True])
def test_gradients(leave):
    fn, recorder = compiled(small, leave_unprofitable=leave)
    for _ in range(4):
        a, b = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        fn(a).sum().backward()
        small(b).sum().backward()
        assert torch.equal(a.grad, b.grad)
    assert left(recorder) == (["small"] if leave else [])


def test_a_function_in_one_graph_is_left_where_autograd_records_little():
    def f(x):
        return x + 1

    x = torch.ones(4, requires_grad=True)
    assert left(run(f, (x,), (x,))) == ["f"]
    with torch.no_grad():
        assert left(run(f, (x,), (x,))) == []


@pytest.mark.parametrize(
    "function, leave",
    [
        (lambda x, y: x + y, True),
        (lambda x, y: torch.relu(x), True),
        (lambda x, y: x * y - y * x, False),
        (lambda x, y: x + 1, False),  # eager makes a tensor of the number
        (lambda x, y: x.new_empty(2).fill_(1.0), True),
        (lambda x, y: (x[0], x[1], x[2], y[3], y[:2]), True),  # views
    ],
)
def test_a_function_of_one_call_is_left_where_its_kernel_takes_no_time(function, leave):
    x = torch.ones(4)
    assert left(run(function, (x, x), (x, x))) == (["<lambda>"] if leave else [])


def test_three_operators_stay_compiled_at_dynamic_sizes():
    def centred(x):
        return torch.relu(x - x.mean(0))

    assert left(run(centred, (torch.ones(4, 8),), (torch.ones(5, 8),), (torch.ones(6, 8),))) == []


@pytest.mark.parametrize("elements, leave", [(1 << 10, True), (1 << 21, False)])
def test_a_function_of_one_call_stays_compiled_where_its_kernel_takes_long(elements, leave):
    def f(x, y):
        return x * y

    x = torch.ones(elements)
    assert left(run(f, (x, x), (x, x))) == (["f"] if leave else [])


def test_what_seldom_changes_is_not_asked_of_what_is_left():
    def f(x, y):
        return torch.relu(x) if x.shape == y.shape else y

    x, y = torch.ones(4), torch.ones(4)
    fn, recorder = compiled(f, leave_unprofitable=True)
    fn(x, y)
    assert left(recorder) == ["f"]
    (entry,) = treadle_frame.entries(f.__code__)
    assert {check.op for check in entry.guard.checks}.isdisjoint({"type_lookup", "distinct_objects"})
    assert torch.equal(fn(x, x), x)
    assert left(recorder) == ["f"]  # the same tensor twice is no reason to compile


def test_effects_are_made_once():
    seen = []

    def f(x):
        seen.append(1)
        x = x + 1
        item(x.sum())
        seen.append(2)
        return x

    fn, _ = compiled(f, leave_unprofitable=True)
    for calls in range(1, 6):
        fn(torch.ones(2))
        assert seen == [1, 2] * calls


def test_recursion_during_a_trial():
    def f(x, n):
        x = x + 1
        item(x.sum())
        return f(x, n - 1) * 2 if n else x

    recorder = run(f, *[(torch.ones(2), n) for n in (2, 2, 3, 1, 0, 2, 2)])
    assert recorder.graphs


def test_continuations_that_are_left_die():
    def make():
        weight = torch.ones(4)

        def f(x):
            x = x + weight
            item(x.sum())
            return x * weight

        return f, weakref.ref(weight)

    f, weight = make()
    run(f, *[(torch.ones(4),)] * 4)
    del f
    treadle_frame.reset()
    gc.collect()
    assert weight() is None


def callee(x):
    return x + 1


def calls_it(x):
    x = callee(x)
    if item(x.sum()) > 0:
        x = x * 2
    return x - 1


def test_what_a_function_left_to_python_calls_can_still_be_compiled():
    run(calls_it, *[(torch.ones(4),)] * 4)
    assert treadle_frame.is_skipped(callee)
    ran = []
    fast = optimize(callee, lambda gm, _: lambda *args: ran.append(1) or gm.forward(*args))
    assert torch.equal(fast(torch.ones(4)), callee(torch.ones(4))) and ran


def counted(x, step):
    step += 1
    if step > 1000:
        for _ in range(200):
            x = torch.sin(x) + 1
    return x


def test_another_path_is_compiled_while_the_function_is_asked_for_its_path():
    fn, recorder = compiled(counted, leave_unprofitable=True, decide_on_inputs=True)
    x, step = torch.ones(4), torch.tensor(0)
    for _ in range(4):
        fn(x, step)
    assert left(recorder) == ["counted"]
    step.fill_(1000)
    assert torch.equal(fn(x, step), counted(x, torch.tensor(1000)))
    assert len(recorder.graphs) >= 2
    (latest, *_) = treadle_frame.entries(counted)
    assert not latest.payload.is_left
    step.fill_(0)
    for _ in range(200):
        fn(x, step)
    assert step == 200
    hits = latest.hits
    step.fill_(1000)
    fn(x, step)
    assert latest.hits == hits + 1, "a path that is compiled is told from the others for good"


def test_a_function_that_takes_one_path_is_no_longer_asked():
    fn, recorder = compiled(counted, leave_unprofitable=True, decide_on_inputs=True)
    x, step = torch.ones(4), torch.tensor(0)
    for _ in range(100):
        fn(x, step)
    assert left(recorder) == ["counted"] and step == 100
    step.fill_(1000)
    assert torch.equal(fn(x, step), counted(x, torch.tensor(1000)))
    assert len(recorder.graphs) == 1


@pytest.mark.parametrize("trains_first", [True, False])
def test_what_is_left_in_training_is_compiled_in_inference(trains_first):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        for _ in range(5):
            x = torch.tanh(x * w)
        return x

    fn, recorder = compiled(f, leave_unprofitable=True)
    x = torch.ones(4)
    for trains in (trains_first, not trains_first) * 2:
        with torch.set_grad_enabled(trains):
            for _ in range(3):
                assert fn(x).requires_grad == trains
    assert len(recorder.graphs) == 2 and len(left(recorder)) == 1
    kept, *_ = [entry for entry in treadle_frame.entries(f.__code__) if not entry.payload.is_left]
    assert kept.hits >= 4


def plus_one(x):
    return x + 1


def test_a_function_that_is_left_is_no_longer_asked_after_many_calls(monkeypatch):
    """Its guards cost as much as it does. When a function of the user's choice is compiled, it is looked at again."""
    monkeypatch.setattr(unprofitable, "_ASKED", 16)
    handler = compile_handler(run_graph, TracerOptions(leave_unprofitable=True, raise_internal_errors=True), Recorder())
    handler.add_root(large.__code__)
    x = torch.ones(4)
    treadle_frame.set_handler(handler)
    try:
        for _ in range(12):
            plus_one(x)
        assert treadle_frame.entries(plus_one.__code__) and not treadle_frame.is_skipped(plus_one.__code__)
        for _ in range(12):
            assert torch.equal(plus_one(x), x + 1)
        assert treadle_frame.is_skipped(plus_one.__code__)
        large(x)
        assert not treadle_frame.is_skipped(plus_one.__code__)
    finally:
        treadle_frame.set_handler(None)


def test_a_function_that_the_user_has_asked_to_compile_is_asked_for_ever(monkeypatch):
    monkeypatch.setattr(unprofitable, "_ASKED", 4)
    run(small, *[(torch.ones(4),)] * 12)
    assert not treadle_frame.is_skipped(small.__code__)


def either_way(x, y):
    """Two small pieces around a break, in one of two ways."""
    if random.random() < 0.5:
        x = x + 1
    if item(y) > 0:
        x = x * 2
    return x


def test_random_numbers_are_not_foreseen_for_python():
    fn, recorder = compiled(either_way, leave_unprofitable=True)
    x, y = torch.ones(4), torch.ones(())
    for n in range(12):
        random.seed(n)
        expected = either_way(x, y)
        state = random.getstate()
        random.seed(n)
        assert torch.equal(fn(x, y), expected)
        assert random.getstate() == state
    assert "either_way" in left(recorder)
    entries = treadle_frame.entries(either_way)
    assert entries and all(entry.payload.is_left for entry in entries)
    assert not [check.reason for entry in entries for check in entry.guard.checks if "random() <" in str(check.reason)]
    assert not [check.op for entry in entries for check in entry.guard.checks if check.op in ("call", "call_many")]


def turning(x, turns):
    for _ in range(20):
        x = torch.sin(x) * 2
    while item(turns > 0):
        turns = turns - 1
    return x


def test_calls_that_differ_from_the_first_are_judged_once_more():
    short, long = (torch.ones(4), torch.tensor(2)), (torch.ones(4), torch.tensor(60))
    assert left(run(turning, *[short] * 8)) == []
    assert left(run(turning, short, short, long)) == []
    assert left(run(turning, short, short, *[long] * 8)) == ["turning"]


def test_after_two_trials_nothing_more_is_asked():
    fn, recorder = compiled(turning, leave_unprofitable=True)
    for _ in range(8):
        fn(torch.ones(4), torch.tensor(2))
    before = treadle_frame.counters()["handler_calls"]
    fn(torch.ones(4), torch.tensor(2))
    assert treadle_frame.counters()["handler_calls"] == before and not left(recorder)
    checks = [check for entry in treadle_frame.entries(turning) for check in entry.guard.checks]
    assert checks and not any(check.reason.startswith("it runs") for check in checks)
