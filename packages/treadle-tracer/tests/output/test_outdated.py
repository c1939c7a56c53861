"""Calls that outdate their own traces run in Python; another call like them is compiled. All results and effects are eager's."""

from __future__ import annotations

import collections
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from compile_runs import compiled, item

import treadle_frame

X = torch.linspace(0.5, 1.5, 8)


def cached_attribute():
    box = SimpleNamespace(cache=None)

    def f(turn):
        if box.cache is None:
            box.cache = X.sin()
        return box.cache * 2

    return f, lambda: box.cache


def cached_cell():
    cache = None

    def f(turn):
        nonlocal cache
        if cache is None:
            cache = X.sin()
        return cache * 2

    return f, lambda: cache


def cached_global():
    names = {"X": X, "cache": None}
    exec("def f(turn):\n global cache\n if cache is None: cache = X.sin()\n return cache * 2", names)
    return names["f"], lambda: names["cache"]


def cached_item():
    cache = {}

    def f(turn):
        if "x" not in cache:
            cache["x"] = X.sin()
        return cache["x"] * 2

    return f, lambda: dict(cache)


def state_of_objects():
    state = {}

    def f(turn):
        if X not in state:
            state[X] = torch.zeros_like(X)
        state[X] += 1
        return state[X] * 2

    return f, lambda: list(state.values())


def counted():
    box = SimpleNamespace(count=0)

    def f(turn):
        box.count += 1
        return X * box.count

    return f, lambda: box.count


def grows():
    seen = []

    def f(turn):
        seen.append(X + turn)
        return X * len(seen)

    return f, lambda: list(seen)


def members():
    seen = set()

    def f(turn):
        first = "x" not in seen
        seen.add("x")
        return X.sin() if first else X.cos()

    return f, lambda: len(seen)


def new_attribute():
    class Box:
        pass

    box = Box()

    def f(turn):
        if not hasattr(box, "cache"):
            box.cache = X.sin()
        return box.cache * 2

    return f, lambda: getattr(box, "cache", None)


def dropped_gradient():
    parameter = torch.ones(8, requires_grad=True)
    parameter.grad = torch.ones(8)

    def f(turn):
        if parameter.grad is None:
            return X.sin()
        y = parameter.grad * 2
        parameter.grad = None
        return y

    return f, lambda: parameter.grad is None


def step_in_tensor():
    step = torch.zeros(())

    def f(turn):
        step.add_(1)
        return X.sin() if step.item() < 2 else X.cos()

    return f, lambda: step.clone()


OUTDATED = [
    cached_attribute,
    cached_cell,
    cached_global,
    cached_item,
    state_of_objects,
    counted,
    grows,
    members,
    new_attribute,
    dropped_gradient,
    step_in_tensor,
]


def run(make, turns, **options):
    """(what the compiles say, graphs at each turn); results and state are compared with a twin's in eager."""
    (expected, expected_state), (program, state) = make(), make()
    fn, recorder = compiled(program, setup_in_eager=True, decide_on_inputs=True, **options)
    graphs = []
    for turn in range(turns):
        before = len(recorder.graphs)
        torch.testing.assert_close(fn(turn), expected(turn))
        torch.testing.assert_close(state(), expected_state())
        graphs.append(len(recorder.graphs) - before)
    return recorder, graphs


@pytest.mark.parametrize("make", OUTDATED)
def test_the_first_call_is_not_compiled_and_the_second_is(make):
    recorder, graphs = run(make, 5)
    assert graphs == [0, 1, 0, 0, 0]
    assert len(recorder.waits) == 1 and recorder.waits[0]
    assert not recorder.recompiles and not recorder.skips


def stored_again():
    box = SimpleNamespace(flag=True)

    def f(turn):
        y = X.sin() if box.flag else X.cos()
        box.flag = True
        return y

    return f, lambda: box.flag


def stored_unread():
    box = SimpleNamespace(last=None)

    def f(turn):
        box.last = X + 1
        return X.sin()

    return f, lambda: box.last


def state_that_stays_alike():
    box = SimpleNamespace(h=torch.zeros(8))

    def f(turn):
        box.h = box.h * 0.5 + X
        return box.h.sin()

    return f, lambda: box.h


def unread_list():
    seen = []

    def f(turn):
        seen.append(X + 1)
        return X.sin()

    return f, lambda: list(seen)


def decided_alike():
    step = torch.zeros(())

    def f(turn):
        step.add_(1)
        return X.sin() if step.item() < 100 else X.cos()

    return f, lambda: step.clone()


@pytest.mark.parametrize("make", [stored_again, stored_unread, state_that_stays_alike, unread_list, decided_alike])
def test_what_breaks_no_guard_is_compiled_at_once(make):
    recorder, graphs = run(make, 4)
    assert graphs == [1, 0, 0, 0]
    assert not recorder.waits


def test_a_call_like_one_before_is_compiled():
    """The guards are those of a new object at every call."""

    class Box:
        cache = None

    def use(box):
        if box.cache is None:
            box.cache = X.sin()
        return box.cache * 2

    fn, recorder = compiled(use, setup_in_eager=True)
    for turn in range(4):
        box = Box()
        torch.testing.assert_close(fn(box), X.sin() * 2)
        torch.testing.assert_close(box.cache, X.sin())
        assert len(recorder.graphs) == min(turn, 1)
    assert len(recorder.waits) == 1


def grows_until(length):
    def make():
        box = SimpleNamespace(text="")

        def f(turn):
            if len(box.text) < length:
                box.text += "x"
            return X * 2 if "xxxxxxxxxxx" in box.text else X.sin()

        return f, lambda: len(box.text)

    return make


def test_what_changes_at_every_call_is_traced_ever_more_rarely():
    """Calls 0 to 4, 7, 12, 21, 38, 71 and 136, which is the last."""
    with pytest.warns(
        RuntimeWarning, match="runs uncompiled from now on: every call ends what it relies on: box.text == 'x"
    ):
        recorder, graphs = run(grows_until(1000), 200)
    assert not any(graphs)
    assert len(recorder.waits) == 11
    assert len(recorder.skips) == 1


def test_what_comes_to_rest_is_compiled():
    recorder, graphs = run(grows_until(6), 10)
    assert graphs == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert len(recorder.waits) == 5


def test_under_fullgraph_it_is_compiled_in_the_end():
    recorder, graphs = run(grows_until(100), 7, fullgraph=True)
    assert graphs[:5] == [0, 0, 0, 0, 1]
    assert len(recorder.waits) == 4


def test_functions_called_by_what_never_settles_are_compiled():
    box = SimpleNamespace(text="")

    def inner(x):
        return x.sin() * 2

    def outer(x):
        box.text += "x"
        return inner(x) + len(box.text.strip("y"))

    fn, recorder = compiled(outer, setup_in_eager=True)
    for turn in range(9):
        torch.testing.assert_close(fn(X), X.sin() * 2 + turn + 1)
    assert len(recorder.graphs) == 1 and len(treadle_frame.entries(inner.__code__)) == 1


def test_every_module_waits_for_itself():
    class Layer(torch.nn.Module):
        cache = None

        def forward(self, x):
            if self.cache is None:
                self.cache = x.cos()
            return x.sin() + self.cache

    layers = [Layer() for _ in range(8)]
    forward, recorder = compiled(Layer.forward, setup_in_eager=True)
    for turn in range(3):
        for layer in layers:
            torch.testing.assert_close(forward(layer, X), X.sin() + X.cos())
        assert len(recorder.waits) == 8 and len(recorder.graphs) <= 8 * min(turn, 1)
    assert recorder.graphs


def test_a_module_that_never_settles_is_traced_ever_more_rarely_for_good():
    class Metric(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = ""

        def forward(self, x):
            self.seen += "x"
            return x.sin() + len(self.seen.strip("y"))

    metric = Metric()
    forward, recorder = compiled(Metric.forward, setup_in_eager=True)
    for turn in range(1200):
        torch.testing.assert_close(forward(metric, X), X.sin() + turn + 1)
    assert len(recorder.waits) <= 14 and not recorder.skips


def recent_results():
    recent = collections.OrderedDict()

    def f(turn):
        recent[turn] = X + turn
        if len(recent) > 3:
            recent.popitem(last=False)
        return sum(recent.values())

    return f, lambda: list(recent.items())


def full_deque():
    history = collections.deque([torch.zeros(8)] * 4, maxlen=4)

    def f(turn):
        history.append(X + turn)
        return sum(history)

    return f, lambda: list(history)


@pytest.mark.parametrize(("make", "expected"), [(recent_results, 0), (full_deque, 1)])
def test_contents_that_change_places(make, expected):
    _, graphs = run(make, 12)
    assert sum(graphs) == expected


def test_functions_that_are_called_are_not_compiled_alone():
    box = SimpleNamespace(cache=None)

    def inner(x):
        return x.sin() * 2

    def outer(x):
        if box.cache is None:
            box.cache = inner(x)
        return inner(x) + box.cache

    fn, recorder = compiled(outer, setup_in_eager=True)
    for _ in range(3):
        torch.testing.assert_close(fn(X), X.sin() * 4)
    assert len(recorder.graphs) == 1 and not treadle_frame.entries(inner.__code__)


def test_pieces_of_a_broken_graph_do_not_wait():
    """A function that breaks may last, and is not to run in Python as a whole."""
    box = SimpleNamespace(cache=None)

    def f(x):
        if box.cache is None:
            box.cache = x.sin()
        print(end="")
        return input_free(box.cache)

    def input_free(x):
        return x * float(x.sum().item() > 0)

    fn, recorder = compiled(f, setup_in_eager=True, defer=False)
    torch.testing.assert_close(fn(X), X.sin())
    assert recorder.breaks and recorder.graphs and not recorder.waits


def test_exceptions_of_such_a_call_are_the_programs():
    box = SimpleNamespace(cache=None)

    def f(turn):
        if box.cache is None:
            box.cache = X.sin()
        if turn == 0:
            raise KeyError("first")
        return box.cache * 2

    fn, _ = compiled(f, setup_in_eager=True)
    with pytest.raises(KeyError, match="first"):
        fn(0)
    torch.testing.assert_close(fn(1), X.sin() * 2)


def test_nothing_is_kept_alive_by_a_call_that_waits():
    model = torch.nn.Linear(2, 2)
    model.cache = None

    def f(m, x):
        if m.cache is None:
            m.cache = x * 2
        return m(x) + m.cache

    fn, recorder = compiled(f, setup_in_eager=True)
    fn(model, torch.ones(2))
    assert recorder.waits and not recorder.graphs
    parameter = weakref.ref(model.weight)
    del model
    gc.collect()
    assert parameter() is None


def test_the_option_is_off_by_default():
    fn, recorder = compiled(cached_attribute()[0])
    fn(0)
    assert len(recorder.graphs) == 1 and not recorder.waits


def test_what_a_continuation_adds_to_a_list_of_the_call_outdates_nothing():
    """The list that a comprehension fills is another one at each call."""

    def function(xs):
        return torch.stack([item(x.sum()) * x.sum() for x in xs]) * 2

    run, recorder = compiled(function, setup_in_eager=True)
    for n in (3, 4, 5, 6, 1, 7):
        xs = [torch.ones(n + i) for i in range(4)]
        torch.testing.assert_close(run(xs), function(xs))
    assert not recorder.waits
