"""Programs with graph breaks of all kinds, compiled with a backend that runs the graph as it is, against plain Python."""

from __future__ import annotations

import contextlib
import math
import sys
from time import sleep

import pytest
import torch
from compile_runs import Target, compare, compiled, item, items, portrait, t

from treadle_tracer import Unsupported

printed = []


def say(*things):
    printed.append([str(x) for x in things])
    return len(printed)


def said():
    before = list(printed)
    printed.clear()
    return before


say_opaque = getattr(math, "hypot")  # noqa: B009


def breaks_at_sleep(x):
    y = x + 1
    sleep(len(y.shape) * 0)
    return y * 2


def breaks_twice(x):
    y = x + 1
    n = item(y.sum())
    z = y * 2 if n > 0 else y - 1
    m = items(z)
    return z + len(m), n, m


def nested_call(x):
    return torch.add(x, item((x * 2).sum()), alpha=int(item((x + 1).mean()) > -100))


def branch(x):
    y = x + 1
    if y.sum() > 0:
        y = y * 2
    else:
        y = y * 3
    return y - 1


def short_circuit(x, y):
    return (x.sum() > 0) and (y.sum() > 0), (x.sum() > 0) or "no", not (y.sum() > 0)


def while_tensor(x):
    n = 0
    while x.sum() < 50:
        x = x * 1.5 + 1
        n += 1
    return x, n


def loop_break(x, n):
    outputs = []
    for i in range(n):
        x = x + i
        if x.sum() > 5:
            break
        outputs.append(item(x.mean()))
    else:
        outputs.append("all")
    return x * 2, outputs


def try_around(x):
    y = x + 1
    try:
        n = int(item(y.sum()))
        y = y / 2
        value = [1, 2, 3][n + 100]
    except IndexError as error:
        value = str(error)
    finally:
        y = y + 3
    return y, value


def with_around(x):
    with torch.no_grad():
        y = x * 2
        n = item(y.sum())
        z = y * n
    w = x * n
    return y, z, w, torch.is_grad_enabled()


def tensors_made_on_another_device(x):
    with torch.device("meta"):
        y = torch.ones(3)
        n = item(x.sum())
        z = torch.ones(2)
    entered = torch.device("meta")
    entered.__enter__()
    w = torch.ones(3)
    entered.__exit__(None, None, None)
    return [made.device.type for made in (y, z, w, torch.ones(2))], x * n


def uncaught(x):
    y = x + 1
    item(y.sum())
    z = [y]
    return z[1]  # the line


def raises(x):
    if item(x.sum()) > -1e9:
        raise ValueError(f"bad {x.shape}")
    return x


def locals_alive(x, k):
    a, b = x + 1, x * k
    c = [a, b]
    item(a.sum())
    c.append(a)
    item(b.sum())
    return c, a is c[0], b


def writes_then_breaks(obj, x):
    obj.count += 1
    obj.log.append(x + 1)
    n = float(item(x.sum()))
    obj.log.append(n)
    obj.last = obj.log
    return obj.log[-2] * n


def closure_over_break(x):
    n = 1

    def bump(y):
        nonlocal n
        n += 1
        return y * n

    y = bump(x)
    item(y.sum())
    z = bump(y)
    return z, n, bump


def random_order(x):
    a = torch.rand(3)
    s = item(a.sum())
    b = torch.rand(3)
    return a + b * s + torch.nn.functional.dropout(x, 0.5)


def callee_breaks(x):
    return helper(x + 1) * 2


def helper(x):
    x = x * 3
    item(x.sum())
    return x - 1


def generator_break(x):
    return list(yields(x))


def yields(x):
    for i in range(3):
        yield x * i
        item(x.sum())


def unpacking(x):
    first, *rest = items(x)
    return x * first, rest


BREAKS = [
    (breaks_at_sleep, t(3)),
    (breaks_twice, t(3)),
    (nested_call, t(3)),
    (branch, t(3)),
    (branch, lambda: t(3)() - 100),
    (short_circuit, t(3), lambda: t(3)() + 10),
    (short_circuit, lambda: t(3)() + 10, t(3)),
    (while_tensor, t(3)),
    (loop_break, t(2), 5),
    (loop_break, t(2), 1),
    (try_around, t(3)),
    (with_around, t(3, requires_grad=True)),
    (tensors_made_on_another_device, t(3)),
    (uncaught, t(3)),
    (raises, t(3)),
    (locals_alive, t(3), 2),
    (writes_then_breaks, lambda: Target(), t(3)),
    (closure_over_break, t(3)),
    (random_order, t(3)),
    (callee_breaks, t(3)),
    (generator_break, t(3)),
    (unpacking, t(3)),
]


@pytest.mark.parametrize("case", BREAKS, ids=lambda case: case[0].__name__)
def test_breaks(case):
    recorder = compare(*case, calls=3)
    assert recorder.codes() != []


@contextlib.contextmanager
def opened(log, x):
    log.append("in")
    try:
        yield x + 1
    finally:
        log.append("out")


def break_in_opened(x):
    log = []
    with opened(log, x) as y, torch.no_grad():
        z = y * 2
        item(z.sum())
        w = z + y
    return w, log


def break_over_generator(x):
    out = []
    for y in yields_plainly(x):
        item(y.sum())
        out.append(y * 2)
    return out


def yields_plainly(x):
    for i in range(3):
        yield x + i


def break_over_views(d):
    for k, x in d.items():
        x.add_(1)
        item(x.sum())
        x.mul_(2)
    return d, [x + 1 for x in d.values()]


@pytest.mark.parametrize(
    "case",
    [
        (break_in_opened, t(3)),
        (break_over_generator, t(3)),
        (break_over_views, lambda: {"a": t(3)(), "b": t(2)()}),
    ],
    ids=lambda case: case[0].__name__,
)
def test_frames_that_must_be_left_before_the_break(case):
    recorder = compare(*case, calls=2)
    assert len(recorder.graphs) >= 2
    assert recorder.skips == []


def test_the_graphs_around_a_break():
    recorder = compare(breaks_at_sleep, t(3))
    assert [len([n for n in gm.graph.nodes if n.op.startswith("call")]) for gm in recorder.graphs] == [1, 1]


def test_both_ways_of_a_branch():
    fast, recorder = compiled(branch)
    for sign in (1, -1, 1, -1):
        x = torch.ones(2) * sign * 3
        assert torch.equal(fast(x), branch(x))
    assert len(recorder.graphs) == 3
    assert recorder.recompiles == []


def test_tracebacks_show_the_users_line():
    fast, _ = compiled(uncaught)
    with pytest.raises(IndexError) as caught_error:
        fast(torch.ones(2))
    assert "# the line" in str(caught_error.traceback[-1].statement)


def test_fullgraph_names_the_reason_and_the_line():
    fast, _ = compiled(breaks_twice, fullgraph=True)
    with pytest.raises(Unsupported) as error:
        fast(torch.ones(2))
    assert __file__ in str(error.value)
    assert "breaks_twice" in str(error.value)


def test_fullgraph_of_a_generator():
    with pytest.raises(Unsupported, match="generator"):
        compiled(yields, fullgraph=True)


def frame_depth():
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def test_breaks_in_long_loops_do_not_recurse():
    """There are no more frames at the end than at the start; what differs in every turn is not compiled again and again."""
    depths = []

    def many(x, n):
        for _ in range(n):
            x = x + 1
            depths.append(frame_depth())
            x = x * 0.5
        return x

    fast, recorder = compiled(many)
    x = torch.ones(1)
    assert torch.equal(fast(x, 1500), many(x, 1500))
    assert max(depths[5:1500]) - min(depths[5:1500]) <= 1
    assert len(recorder.graphs) <= 8


def test_a_loop_with_a_break_is_compiled_in_pieces_once():
    def loop(x, xs):
        for y in xs:
            x = torch.relu(x) + y
            sleep(0)
            x = x * 0.5
        return x + 1

    fast, recorder = compiled(loop)
    x, xs = torch.ones(1), iter([torch.ones(1)] * 50)
    assert torch.equal(fast(x, xs), loop(x, iter([torch.ones(1)] * 50)))
    assert (
        len(recorder.graphs) == 3
    )  # the begin of the first turn; the rest of a turn with the begin of the next; the last turn
    assert recorder.recompiles == []
    assert recorder.skips == []


def test_loops_over_lists_with_breaks():
    def collect(xs):
        out = []
        for i, x in enumerate(xs):
            y = x * 2
            if y.sum() > 3:
                y = y - i
            out.append(y)
        return sum(out), out

    recorder = compare(collect, lambda: [torch.full((2,), float(i)) for i in range(6)])
    assert len(recorder.graphs) <= 12


def test_many_breaks_in_a_row():
    text = "def many(x):\n" + "    x = x + 1\n    item(x.sum())\n" * 30 + "    return x\n"
    namespace = {"item": item}
    exec(text, namespace)
    recorder = compare(namespace["many"], t(1), calls=2)
    assert len(recorder.graphs) == 30


def test_identity_of_results_across_calls():
    keep = []

    def remember(x):
        keep.append(x)
        return keep

    fast, _ = compiled(remember)
    a, b = torch.ones(1), torch.ones(1)
    assert fast(a) is keep
    assert fast(b) is keep
    assert [id(x) for x in keep] == [id(a), id(b)]
    assert portrait(keep) != portrait([a, a])


@torch.jit.script
def scripted(x):
    return torch.zeros(1) if torch.jit.is_scripting() else x + 1


class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.trace(torch.nn.Tanh(), torch.ones(2))

    def forward(self, x):
        return self.inner(x * 2) - 1


def calls_a_script_function(x):
    return scripted(x * 2) - 1


def passes_a_sparse_tensor(x, sparse):
    y = x + 1
    return torch.sparse.mm(sparse, y[:, None]) * 2, [sparse][0] is sparse


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (Scripted().forward, (torch.ones(2),)),
        (calls_a_script_function, (torch.ones(2),)),
        (passes_a_sparse_tensor, (torch.ones(2), torch.eye(2).to_sparse())),
    ],
)
def test_objects_of_unknown_kind_split_the_function(function, arguments):
    fast, recorder = compiled(function)
    for _ in range(2):
        assert portrait(fast(*arguments)) == portrait(function(*arguments))
    assert len(recorder.graphs) == 2
    assert recorder.skips == []
