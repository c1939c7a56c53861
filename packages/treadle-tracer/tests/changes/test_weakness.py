"""Guards are as weak as the use allows: state that changes at every step costs at most one recompile."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types

import pytest
import torch
from compile_runs import compiled
from mutate_runs import check_at_most_one_recompile, collect, ones
from torch import nn

STEPS = 8


def counter_of_a_module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return x * 2

    m = Net()

    def f(x):
        return m(x)

    for _ in range(STEPS):
        yield f, ones()


def number_of_a_module():
    m = nn.Linear(2, 2)
    m.k = 0.0

    def f(x):
        return x * m.k

    for step in range(STEPS):
        m.k = 0.5 + step
        yield f, ones()


def learning_rate_in_a_dict():
    group = {"lr": 0.1}

    def f(x):
        return x * group["lr"]

    for step in range(STEPS):
        group["lr"] = 0.1 / (step + 3)
        yield f, ones()


def number_in_a_list():
    items = [1, 2]

    def f(x):
        return x * items[1]

    for step in range(STEPS):
        items[1] = step + 5
        yield f, ones()


def number_of_an_object():
    @dataclasses.dataclass
    class State:
        step: int = 0

    state = State()

    def f(x):
        return x + state.step

    for step in range(STEPS):
        state.step = step + 3
        yield f, ones()


def number_in_a_slot():
    class State:
        __slots__ = ("step",)

    state = State()

    def f(x):
        return x + state.step

    for step in range(STEPS):
        state.step = step + 3
        yield f, ones()


def number_on_a_class():
    class State:
        step = 0

    def f(x):
        return x + State.step

    for step in range(STEPS):
        State.step = step + 3
        yield f, ones()


def number_on_the_class_of_an_instance():
    class State:
        step = 0

    state = State()

    def f(x):
        return x + state.step

    for step in range(STEPS):
        State.step = step + 3
        yield f, ones()


def global_number():
    space: dict[str, object] = {"K": 0}
    exec("def f(x):\n    return x * K", space)
    for step in range(STEPS):
        space["K"] = step + 3
        yield space["f"], ones()


def number_in_a_namespace():
    config = types.SimpleNamespace(k=1)

    def f(x):
        return x * config.k

    for step in range(STEPS):
        config.k = step + 3
        yield f, ones()


def unrelated_attribute_of_a_class():
    class A:
        k = 2

    a = A()

    def f(x):
        return x * a.k

    for step in range(STEPS):
        A.other = step
        yield f, ones()


def unrelated_global():
    space: dict[str, object] = {"K": 2}
    exec("def f(x):\n    return x * K", space)
    for step in range(STEPS):
        space[f"other{step}"] = step
        yield space["f"], ones()


def unrelated_attribute_of_an_object():
    a = types.SimpleNamespace(k=2)

    def f(x):
        return x * a.k

    for step in range(STEPS):
        setattr(a, f"other{step}", step)
        yield f, ones()


def unrelated_key():
    table = {"k": 2}

    def f(x):
        return x * table["k"]

    for step in range(STEPS):
        table[f"other{step}"] = step
        yield f, ones()


def truth_of_a_growing_list():
    log = [1]

    def f(x):
        return x + 1 if log else x - 1

    for step in range(STEPS):
        log.append(step)
        yield f, ones()


def truth_of_a_growing_dict():
    log = {0: 0}

    def f(x):
        return x + 1 if log else x - 1

    for step in range(STEPS):
        log[step + 1] = step
        yield f, ones()


def length_of_a_growing_list():
    log = []

    def f(x):
        return x * len(log)

    for step in range(STEPS):
        log.append(step)
        log.append(step)
        yield f, ones()


def length_of_a_growing_dict():
    log = {}

    def f(x):
        return x * len(log)

    for step in range(STEPS):
        log[step] = log[-step - 1] = step
        yield f, ones()


def history_in_a_list():
    log = []

    def f(log, x):
        log.append(len(log) + 2)
        log.extend((x, 1))
        return x + 1 if log else x

    for _ in range(STEPS):
        yield f, log, ones()


def history_in_a_list_of_a_module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.losses = []

        def forward(self, x):
            self.losses.append((x * 2).sum())
            return x * 2

    m = Net()

    def f(x):
        return m(x)

    for _ in range(STEPS):
        yield f, ones()


def results_in_a_growing_dict():
    cache = {"count": 0}

    def f(cache, x):
        cache["last"] = x * 2
        cache["count"] = cache.get("count", 0) + 1
        return x + 1

    for step in range(STEPS):
        cache[f"other {step}"] = step
        yield f, cache, ones()


def default_dict_of_lists():
    log = collections.defaultdict(list)

    def f(x):
        log["x"].append(x.sum())
        return x + 1

    for step in range(STEPS):
        log[f"other {step}"].append(step)
        yield f, ones()


def numpy_learning_rate():
    np = pytest.importorskip("numpy")
    group = {"lr": np.float64(0.1)}

    def f(x):
        return x * group["lr"]

    for step in range(STEPS):
        group["lr"] = np.float64(0.1 / (step + 3))
        yield f, ones()


def new_object_at_every_step():
    class A:
        def __init__(self):
            self.k = 2

    def f(a, x):
        return x * a.k if a is not None else x

    for _ in range(STEPS):
        yield f, A(), ones()


def new_object_against_another():
    class A:
        def __init__(self):
            self.k = 2

    def f(a, b, x):
        return x * a.k if a is b else x * b.k + 1

    for _ in range(STEPS):
        yield f, A(), A(), ones()


def new_lists_at_every_step():
    def f(a, b, x):
        a.append(1)
        return x * len(b)

    for _ in range(STEPS):
        yield f, [1], [1, 2], ones()


def new_lambda_at_every_step():
    def f(g, x):
        return g(x)

    for step in range(STEPS):
        yield f, (lambda x, k=torch.ones(2) * step: x * k), ones()


def new_deque_at_every_step():
    def f(d, x):
        return x * d[0]

    for step in range(STEPS):
        yield f, collections.deque([step + 3]), ones()


def tensors_of_an_object():
    class Cache:
        pass

    cache = Cache()

    def f(x):
        return x + cache.value

    for step in range(STEPS):
        cache.value = torch.ones(2) * step
        yield f, ones()


def weights_that_change_in_place():
    m = nn.Linear(2, 2)

    def f(x):
        return m(x)

    for _ in range(STEPS):
        with torch.no_grad():
            m.weight.add_(1)
        yield f, ones(1, 2)


@collect(globals())
def test_at_most_one_recompile(program):
    check_at_most_one_recompile(program)


def test_looking_for_what_has_changed_leaves_a_defaultdict_alone():
    holder = {"numbers": {"k": 1, "n": -1}}

    def f(x):
        return x + 1, [pair for pair in holder["numbers"].items() if pair[1] != 1]

    run = compiled(f)[0]
    run(torch.ones(1))
    holder["numbers"] = collections.defaultdict(list, k=2)
    assert run(torch.ones(1))[1] == [("k", 2)] and list(holder["numbers"]) == ["k"]


def test_looking_for_what_has_changed_runs_no_property():
    class Counts:
        @property
        def args(self):
            asked.append("args")
            return (torch.ones(3),)

    asked = []
    holder = {"partial": functools.partial(torch.add, torch.ones(2))}

    def f(x):
        return x.sum() + holder["partial"].args[0].sum()

    run = compiled(f)[0]
    for size in (2, 4):
        holder["partial"] = functools.partial(torch.add, torch.ones(size))
        run(torch.ones(2))
    holder["partial"] = Counts()
    assert run(torch.ones(2)) == 5 and asked == ["args"]
