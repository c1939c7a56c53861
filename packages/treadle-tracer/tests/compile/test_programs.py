"""Programs of all kinds, compiled with a backend that runs the graph as it is, against plain Python."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import math
import sys

import pytest
import torch
from compile_runs import compare, compiled, portrait

from treadle_tracer import Unsupported


def t(*shape, **options):
    """A maker of the same tensor every time."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **options)


def whole(recorder):
    """One graph, no break, no recompile."""
    assert recorder.codes() == []
    assert recorder.skips == []
    assert recorder.recompiles == []
    assert len(recorder.graphs) == 1
    assert len(recorder.entries) == 1


# ---- one graph


def plain(x, y):
    return torch.relu(x + y) * 2


def structured(x, k=2):
    parts = {"a": x + k, "b": [x * k, (x - 1, k)]}
    return parts, parts["a"], parts["b"]


def same_twice(x):
    y = x + 1
    return y, y, [x, x], (y,)


def gives_back_input(x):
    x.add_(1)
    return x


def ignores(x):
    x * 3
    return None


def counting(xs):
    total = 0
    for i, x in enumerate(xs):
        if i % 2 == 0:
            total = total + x * i
        else:
            total = total - x
    return total


def comprehension(xs):
    return [x + i for i, x in enumerate(xs) if i != 1], {i: x for i, x in zip("abc", xs)}


def inner_functions(x, k):
    def scale(y, by=k):
        return y * by + offset

    offset = 3
    return scale(x), functools.reduce(lambda a, b: a + b, [x, scale(x, by=2)])


def keywords(x, *args, scale=1.0, **named):
    for a in args:
        x = x + a
    return x * scale, sorted(named)


def recursion(x, n):
    return x if n == 0 else recursion(x + n, n - 1) * 2


def generator(x):
    def numbers(n):
        for i in range(n):
            yield x * i

    return sum(numbers(4))


def formatted(x):
    return x + 1, f"{x.shape[0]} by {tuple(x.shape)} {x.dtype}"


def caught(x, d):
    try:
        value = d["missing"]
    except KeyError as error:
        value = len(error.args[0])
    finally:
        x = x + 1
    return x * value


def no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y, x * 2, torch.is_grad_enabled()


def math_on_shapes(x):
    return x.reshape(-1, x.size(-1) // 2) / math.sqrt(x.shape[-1]), max(x.shape), x.dim()


ONE_GRAPH = [
    (plain, t(3), t(3)),
    (structured, t(2)),
    (same_twice, t(2)),
    (gives_back_input, t(2)),
    (ignores, t(2)),
    (counting, lambda: [t(2)(), t(2)(), t(2)()]),
    (comprehension, lambda: [t(2)(), t(2)(), t(2)()]),
    (inner_functions, t(2), 5),
    (keywords, t(2), 1, 2),
    (recursion, t(2), 4),
    (generator, t(2)),
    (formatted, t(2, 3)),
    (caught, t(2), lambda: {}),
    (no_grad, t(2, requires_grad=True)),
    (math_on_shapes, t(3, 4)),
]


@pytest.mark.parametrize("case", ONE_GRAPH, ids=lambda case: case[0].__name__)
def test_one_graph(case):
    whole(compare(*case))


def test_keyword_arguments():
    whole(compare(keywords, t(2), 1, kwargs={"scale": 3.0, "b": 1, "a": 2}))


# ---- writes to the outside


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(3, 3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.ReLU()])
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.history = []

    def forward(self, x):
        self.calls += 1
        self.history.append(tuple(x.shape))
        self.seen += x.sum().detach()
        for layer in self.layers:
            x = layer(x)
        return self.linear(x)


def call_model(model, x):
    return model(x)


class Counter:
    def __init__(self):
        self.count = 0
        self.log = ["start"]
        self.table = {"a": 1}
        self.last = None


def writes(obj, x):
    obj.count += 1
    obj.log.append("more")
    obj.log[0] = obj.count
    obj.table["b"] = x * 2
    del obj.table["a"]
    obj.last, previous = x + 1, obj.last
    obj.extra = [obj, obj.log]
    return previous, obj.last


def deletes(obj, x):
    del obj.last
    obj.new = 1
    del obj.new
    return x + hasattr(obj, "last")


def swaps(a, b):
    a.table, b.table = b.table, a.table
    a.last = b
    b.last = a
    return a.table


def mutates_containers(xs, d, s, q):
    xs.insert(0, xs.pop())
    xs.extend([1, 2])
    d.update(z=xs[0] + 1)
    d.setdefault("list", []).append(3)
    s.add(4)
    s.discard(1)
    q.appendleft(xs[0])
    return xs, d


total = 0


def counts_globally(x):
    global total
    total = total + 1
    return x + total


def make_counter():
    n = 0

    def count(x):
        nonlocal n
        n += 1
        return x * n

    return count


def test_modules():
    model = Model()

    def reset():
        model.calls = 0
        model.history.clear()
        model.seen.zero_()

    recorder = compare(call_model, model, t(2, 3), reset=reset, look=lambda: model)
    assert recorder.codes() == []
    assert len(recorder.graphs) <= 3  # `calls` is read, so it is specialised


def test_attribute_and_container_writes():
    whole(compare(writes, lambda: Counter(), t(2)))
    whole(compare(deletes, lambda: Counter(), t(2)))
    compare(swaps, lambda: Counter(), lambda: Counter())
    whole(
        compare(
            mutates_containers, lambda: [t(2)(), t(3)()], lambda: {}, lambda: {1, 2}, lambda: collections.deque([1])
        )
    )


def test_the_same_object_twice_is_guarded():
    def both(a, b):
        a.count += 1
        return b.count

    one = Counter()
    fast, recorder = compiled(both)
    assert fast(Counter(), Counter()) == 0
    assert fast(one, one) == 1


def test_globals_and_closures():
    def reset():
        global total
        total = 0

    compare(counts_globally, t(2), reset=reset, look=lambda: total, calls=3)
    fast, _ = compiled(count := make_counter())
    assert [fast(torch.ones(1)).item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert count(torch.ones(1)).item() == 4.0


@dataclasses.dataclass
class Output:
    value: torch.Tensor
    extra: list = dataclasses.field(default_factory=list)


class Named(collections.namedtuple("Named", "a b")):
    def total(self):
        return self.a + self.b


def builds_objects(x):
    out = Output(x + 1)
    out.extra.append(out)
    pair = Named(x, out.value)
    return out, pair, pair.total(), collections.OrderedDict(a=x, b=pair)


def builds_closures(x):
    y = x + 1
    n = 0

    def get(add=y):
        nonlocal n
        n += 1
        return add + n

    def reset():
        nonlocal n
        n = 0

    return get, reset


def test_new_objects_and_functions():
    whole(compare(builds_objects, t(2)))
    whole(compare(builds_closures, t(2)))
    fast, _ = compiled(builds_closures)
    get, reset = fast(torch.zeros(1))
    assert [get().item(), get().item()] == [2.0, 3.0]
    reset()
    assert get().item() == 2.0


# ---- breaks

printed = []


def say(*things):
    printed.append([str(x) for x in things])
    return len(printed)


def said():
    before = list(printed)
    printed.clear()
    return before


say_opaque = getattr(math, "hypot")  # noqa: B009


def breaks_at_print(x):
    y = x + 1
    print(y.shape, end="")
    return y * 2


def breaks_twice(x):
    y = x + 1
    n = y.sum().item()
    z = y * 2 if n > 0 else y - 1
    m = z.tolist()
    return z + len(m), n, m


def nested_call(x):
    return torch.add(x, (x * 2).sum().item(), alpha=int((x + 1).mean().item() > -100))


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
        outputs.append(x.mean().item())
    else:
        outputs.append("all")
    return x * 2, outputs


def try_around(x):
    y = x + 1
    try:
        n = int(y.sum().item())
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
        n = y.sum().item()
        z = y * n
    w = x * n
    return y, z, w, torch.is_grad_enabled()


def uncaught(x):
    y = x + 1
    y.sum().item()
    z = [y]
    return z[1]  # the line


def raises(x):
    if x.sum().item() > -1e9:
        raise ValueError(f"bad {x.shape}")
    return x


def locals_alive(x, k):
    a, b = x + 1, x * k
    c = [a, b]
    a.sum().item()
    c.append(a)
    b.sum().item()
    return c, a is c[0], b


def writes_then_breaks(obj, x):
    obj.count += 1
    obj.log.append(x + 1)
    n = float(x.sum().item())
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
    y.sum().item()
    z = bump(y)
    return z, n, bump


def random_order(x):
    a = torch.rand(3)
    s = a.sum().item()
    b = torch.rand(3)
    return a + b * s + torch.nn.functional.dropout(x, 0.5)


def callee_breaks(x):
    return helper(x + 1) * 2


def helper(x):
    x = x * 3
    x.sum().item()
    return x - 1


def generator_break(x):
    return list(yields(x))


def yields(x):
    for i in range(3):
        yield x * i
        x.sum().item()


def unpacking(x):
    first, *rest = x.tolist()
    return x * first, rest


BREAKS = [
    (breaks_at_print, t(3)),
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
    (uncaught, t(3)),
    (raises, t(3)),
    (locals_alive, t(3), 2),
    (writes_then_breaks, lambda: Counter(), t(3)),
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
        z.sum().item()
        w = z + y
    return w, log


def break_over_generator(x):
    out = []
    for y in yields_plainly(x):
        y.sum().item()
        out.append(y * 2)
    return out


def yields_plainly(x):
    for i in range(3):
        yield x + i


def break_over_views(d):
    for k, x in d.items():
        x.add_(1)
        x.sum().item()
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
    recorder = compare(breaks_at_print, t(3))
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
            print(end="")
            x = x * 0.5
        return x + 1

    fast, recorder = compiled(loop)
    x, xs = torch.ones(1), iter([torch.ones(1)] * 50)
    assert torch.equal(fast(x, xs), loop(x, iter([torch.ones(1)] * 50)))
    assert len(recorder.graphs) == 3
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
    text = "def many(x):\n" + "    x = x + 1\n    x.sum().item()\n" * 30 + "    return x\n"
    namespace = {}
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
