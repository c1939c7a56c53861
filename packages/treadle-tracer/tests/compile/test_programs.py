"""Programs of all kinds, compiled with a backend that runs the graph as it is, against plain Python."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math

import pytest
import torch
from compile_runs import Target, compare, compiled, t, whole

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
    whole(compare(writes, lambda: Target(), t(2)))
    whole(compare(deletes, lambda: Target(), t(2)))
    compare(swaps, lambda: Target(), lambda: Target())
    whole(
        compare(
            mutates_containers, lambda: [t(2)(), t(3)()], lambda: {}, lambda: {1, 2}, lambda: collections.deque([1])
        )
    )


def test_the_same_object_twice_is_guarded():
    def both(a, b):
        a.count += 1
        return b.count

    one = Target()
    fast, recorder = compiled(both)
    assert fast(Target(), Target()) == 0
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
