"""Breaks inside called functions: what is before and after the break in caller and callee is one graph each."""

from __future__ import annotations

import contextlib
import math
import sys
import traceback
import types
import warnings

import pytest
import torch
from compile_runs import compiled as compiled_frame
from compile_runs import item, load

import treadle_frame
from treadle_tracer.output import continuations

seen = []


def stop(*things):
    """What an opaque callee sees of its callers and of what is being handled."""
    frame, names = sys._getframe(1), []
    while not frame.f_code.co_name.startswith("test_"):
        if names[-1:] != [frame.f_code.co_name]:  # a continuation is called by the frame that it is the rest of
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    names.append(sys._getframe(1).f_lineno)
    seen.append((names, type(sys.exc_info()[1]).__name__, things))
    return len(things)


stop._treadle_disabled = True  # type: ignore[attr-defined]


def compiled(function):
    """As `compile_runs.compiled`; what breaks graphs here runs in Python."""
    found = compiled_frame(function)
    for breaking in (stop, opaque_warning):
        treadle_frame.skip(breaking.__code__)
    return found


def t(*shape):
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


def said():
    before = list(seen)
    seen.clear()
    return before


def inner(x, k):
    x = x * 2
    n = stop(k)
    return x + n


def middle(x, k):
    w = x * 3
    r = inner(w, k) + k
    return r * w


def in_the_middle(x):
    a = x + 1
    b = middle(a, 2)
    return b - a


def returned_result(x):
    def last(y):
        return stop(y.shape[0])

    return x * last(x + 1)


def dropped_result(x):
    inner(x, 1)
    return x + 1


def by_keyword_and_star(x):
    def callee(first, *rest, scale, **others):
        stop(len(rest))
        return first * scale + sum(rest) + len(others)

    return callee(x + 1, *[1, 2], **{"scale": x, "k": 3}) * 2


def of_a_branch(x):
    def sign(y):
        if y.sum() > 0:
            return y * 2
        return y * 3

    return sign(x + 1) + sign(-x)


def in_a_condition(x):
    def positive(y):
        return bool(stop(1)) and y.shape[0] > 0

    if positive(x):
        x = x * 2
    return x + 1


def in_a_loop_of_the_callee(x):
    def loop(y):
        for k in range(5):
            y = y + k
            stop(k)
        return y * 2

    return loop(x * 2) + x


def in_a_loop_of_the_caller(x):
    for k in range(5):
        x = inner(x, 1) * 0.5
    return x


def in_a_comprehension(x):
    return sum([x * stop(k) for k in range(3)], x)


def with_cells(x):
    total = 1

    def add(k):
        nonlocal total
        total += k
        stop(total)
        total += k
        return x * total

    y = add(2)
    return y + add(total), total


def callee_with_cells(x):
    def outer(y):
        count = 0

        def bump():
            nonlocal count
            count += 1
            return count

        bump()
        stop(count)
        bump()
        return y * count, bump

    y, bump = outer(x + 1)
    return y * bump()


def recursive(x, k=4):
    if k == 0:
        return x
    x = recursive(x + k, k - 1)
    stop(k)
    return x * 0.5


def caught_by_the_caller(x):
    def fails(y):
        y = y * 2
        item(y)  # more than one element: raises
        return y

    try:
        x = x + 1
        x = fails(x)
    except (RuntimeError, ValueError) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
        x = x * len(lines)
        seen.append(lines)
    finally:
        x = x - 1
    return x


def caught_by_the_callee(x):
    def careful(y):
        try:
            item(y * 2)
        except (RuntimeError, ValueError) as error:
            stop(type(error).__name__)
            y = y * 5
        return y + 1

    try:
        return careful(x) * 2
    finally:
        stop("finally")


def raised_after_the_break(x):
    def late(y):
        y = y + stop(1)
        raise KeyError(y.shape[0])

    try:
        late(x)
    except KeyError as error:
        return x * error.args[0]
    return x


def under_managers(x):
    @contextlib.contextmanager
    def opened():
        seen.append("open")
        try:
            yield 3
        finally:
            seen.append("close")

    with torch.no_grad(), opened() as k:
        y = inner(x, k)
        grad = torch.is_grad_enabled()
    return y * 2, grad, torch.is_grad_enabled()


def while_handling(x):
    try:
        raise ValueError("a")
    except ValueError:
        x = inner(x, 1)
    return x


def decorated(x):
    return torch.no_grad()(middle)(x, 1) + x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(3)])
        self.seen = 0

    def forward(self, x):
        for layer in self.layers:
            x = self.block(layer, x)
        return x.relu()

    def block(self, layer, x):
        x = layer(x)
        self.seen += stop(1)
        return x + self.seen


class Wrapped(Net):
    def forward(self, x):
        x = x * 2
        return super().forward(x) + 1


PROGRAMS = [
    in_the_middle,
    returned_result,
    dropped_result,
    by_keyword_and_star,
    of_a_branch,
    in_a_condition,
    in_a_loop_of_the_callee,
    in_a_loop_of_the_caller,
    in_a_comprehension,
    with_cells,
    callee_with_cells,
    recursive,
    caught_by_the_caller,
    caught_by_the_callee,
    raised_after_the_break,
    under_managers,
    while_handling,
    decorated,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_breaks_inside_calls(program):
    said()
    want = [program(t(3)), said()]
    fast, _ = compiled(program)
    for _ in range(3):
        assert repr([fast(t(3)), said()]) == repr(want)


@pytest.mark.parametrize("cls", [Net, Wrapped])
def test_modules(cls):
    torch.manual_seed(0)
    eager, traced = cls(), cls()
    traced.load_state_dict(eager.state_dict())
    fast, _ = compiled(traced.forward)
    for _ in range(3):
        torch.testing.assert_close(fast(t(2, 3)), eager(t(2, 3)))
        assert [things for _, _, things in said()] == [(1,)] * 6 and eager.seen == traced.seen


@pytest.mark.parametrize(
    ("program", "graphs"),
    [
        (in_the_middle, 2),
        (returned_result, 2),
        (dropped_result, 2),
        (by_keyword_and_star, 2),
        (callee_with_cells, 2),
        (decorated, 2),
        (in_a_comprehension, 2),
    ],
)
def test_the_code_on_both_sides_of_a_break_is_one_graph_each(program, graphs):
    fast, recorder = compiled(program)
    for _ in range(2):
        fast(t(3))
    assert len(recorder.graphs) == graphs and not recorder.skips


def test_a_loop_with_a_break_in_the_callee_has_a_constant_number_of_graphs():
    def loops(x, n):
        def loop(y):
            for k in range(n):
                y = y * 0.5
                stop(k)
            return y

        return loop(x) + 1

    counts = []
    for n in (4, 30):
        fast, recorder = compiled(loops)
        assert fast(t(3), n).tolist() == loops(t(3), n).tolist()
        counts.append(len(recorder.graphs))
    assert counts[0] == counts[1]


def test_a_recursive_function_has_a_bounded_number_of_continuations():
    fast, _ = compiled(recursive)
    counts = []
    for depth in (3, 6, 9):
        assert repr(fast(t(3), depth)) == repr(recursive(t(3), depth))
        counts.append(len(continuations._families[recursive.__code__].made))
    assert counts[1] == counts[2]


def test_tracebacks_show_the_lines_of_all_frames():
    def fails(y):
        return item(y * 2)

    def between(y):
        z = y + 1
        return fails(z) + z

    def program(x):
        y = x + 1
        return between(y) * 2

    fast, _ = compiled(program)
    lines = []
    for function in (program, fast, fast):
        with pytest.raises(RuntimeError) as caught:
            function(t(3))
        stack = [(frame.name, frame.lineno) for frame in traceback.extract_tb(caught.tb) if frame.filename == __file__]
        lines.append(stack[1:])
    assert lines[0] == lines[1] == lines[2] and [name for name, _ in lines[0]] == ["program", "between", "fails"]


def test_the_globals_and_the_place_of_a_warning_are_those_of_the_callee():
    library = types.ModuleType("library")
    text = "import warnings\ndef notice(x):\n    hush(x)\n    return x * factor\ndef hush(x):\n    opaque('old', DeprecationWarning, 3)\n"
    vars(library).update(factor=3, opaque=opaque_warning)
    exec(compile(text, "library.py", "exec"), vars(library))

    def program(x):
        return library.notice(x + 1) + 1

    fast, recorder = compiled(program)
    for function in (program, fast, fast):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert function(t(3)).tolist() == program(t(3)).tolist()
        assert {w.filename for w in caught} == {"library.py"}
    assert len(recorder.graphs) == 2


def opaque_warning(message, kind, level):
    warnings.warn(message, kind, stacklevel=level)


opaque_warning._treadle_disabled = True  # type: ignore[attr-defined]


def test_a_call_whose_result_is_used_by_the_interpreter_is_left_before_it():
    class Number:
        def __init__(self, x):
            self.x = x

        def __add__(self, other):
            stop("add")
            return Number(self.x + other)

        @property
        def doubled(self):
            stop("doubled")
            return self.x * 2

    def items(x):
        for k in range(2):
            stop("items")
            yield x * k

    def program(x):
        n = Number(x + 1) + 2
        return n.doubled + sum(items(x))

    fast, _ = compiled(program)
    said()
    want = [program(t(3)), [things for *_, things in said()]]
    for _ in range(2):
        assert repr([fast(t(3)), [things for *_, things in said()]]) == repr(want)


def test_a_generator_passed_on_stays_alive():
    text = """
import contextlib
log = []
def stop(k):
    log.append(k)
stop._treadle_disabled = True
def items(x):
    try:
        yield x
        yield x * 2
    finally:
        log.append("closed")
def callee(it, x):
    first = next(it)
    stop(1)
    return first + next(it) + x
def program(x):
    it = items(x + 1)
    y = callee(it, x)
    stop(2)
    return y * 2
"""
    eager, traced = load(text), load(text)
    fast, _ = compiled(traced["program"])
    for _ in range(2):
        assert fast(t(3)).tolist() == eager["program"](t(3)).tolist() and eager["log"] == traced["log"]


# ---- functions of numbers alone


def spans(count, width=2):
    found = []
    for n in range(count):
        found.append(math.hypot(n, width))  # which the tracer does not know
    return found


def nested_spans(count):
    return [sum([math.hypot(n, k) for k in range(count)]) for n in range(count)]


def told(text, *numbers, **named):
    return math.hypot(len(text), sum(numbers)) + sum(named.values())


def raising(count):
    raise ValueError(math.hypot(count, 1))


def caught(x):
    try:
        return x * raising(x.shape[0])
    except ValueError as error:
        return x * error.args[0]


PLAIN = {
    "a loop": lambda x: (x + 1) * sum(spans(5)),
    "nested calls": lambda x: (x + 1) * sum(nested_spans(4)),
    "sizes": lambda x: (x + 1) * sum(spans(x.shape[0], width=x.shape[1])),
    "containers": lambda x: (x + 1) * told("text", 1, 2.0, a=3, b=x.shape[0]),
    "in a handler": caught,
}


@pytest.mark.parametrize("name", PLAIN)
def test_functions_of_numbers_run_in_python_as_a_whole(name):
    """They are not compiled when Python calls them, and so not split either: there is one break, however often they would break."""
    program = PLAIN[name]
    fast, recorder = compiled(program)
    for rows in (3, 4, 5, 6):
        assert torch.equal(fast(t(rows, 2)), program(t(rows, 2)))
    assert len(recorder.graphs) <= 4 and not recorder.skips
    assert len(recorder.breaks) <= 3


def test_what_may_hold_tensors_is_split():
    class Holder:
        def __init__(self, x):
            self.x = x

    def held(holder, y):
        y = y + holder.x
        stop(1)
        return y * holder.x

    def program(x):
        return held(Holder(x), x * 2) + 1

    fast, recorder = compiled(program)
    assert torch.equal(fast(t(3)), program(t(3)))
    said()
    assert [len(list(graph.graph.nodes)) > 3 for graph in recorder.graphs] == [True, True]
