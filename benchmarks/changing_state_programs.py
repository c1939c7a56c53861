"""Programs whose state changes in every call, for `changing_state.py`.

Each factory makes the state anew and gives the function to compile and what it is called with at a step, counted from 0.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Arguments = Callable[[int], tuple[Any, ...]]
Factory = Callable[[], tuple[Callable[..., Any], Arguments]]
PROGRAMS: dict[str, Factory] = {}


def program(factory: Factory) -> Factory:
    """Enter a factory under its name."""
    PROGRAMS[factory.__name__.replace("_", " ")] = factory
    return factory


def tensor(step: int) -> tuple[torch.Tensor]:
    return (torch.full((3,), step + 0.5),)


def counting(compute: Callable[[torch.Tensor, int], torch.Tensor]) -> Factory:
    """Enter a program that counts its calls in an attribute and computes with the count."""

    def factory():
        state = types.SimpleNamespace(step=0)

        def f(x):
            state.step += 1
            return compute(x, state.step)

        return f, tensor

    factory.__name__ = compute.__name__
    return program(factory)


# ---- numbers


@counting
def counter_attribute(x, step):
    return x * step


@program
def counter_in_a_module():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.step = nn.Linear(3, 3), 0

        def forward(self, x):
            self.step += 1
            return self.layer(x) / (1 + 0.1 * self.step)

    return Model(), tensor


@program
def counter_in_a_dict():
    state = {"step": 0}

    def f(x):
        state["step"] += 1
        return x + state["step"]

    return f, tensor


@program
def counter_in_a_list():
    state = [0, 1.0]

    def f(x):
        state[0] += 1
        state[1] *= 0.5
        return x * state[1] + state[0]

    return f, tensor


@program
def counter_in_a_cell():
    step = 0

    def f(x):
        nonlocal step
        step += 1
        return x + step

    return f, tensor


@program
def state_as_a_tuple():
    state = types.SimpleNamespace(pair=(0, 1.0))

    def f(x):
        step, scale = state.pair
        state.pair = (step + 1, scale * 0.9)
        return x * scale + step

    return f, tensor


@program
def frozen_dataclass_replaced():
    @dataclasses.dataclass(frozen=True)
    class State:
        step: int
        scale: float

    holder = types.SimpleNamespace(state=State(0, 1.0))

    def f(x):
        s = holder.state
        holder.state = dataclasses.replace(s, step=s.step + 1, scale=s.scale * 0.5)
        return x * s.scale + s.step

    return f, tensor


@program
def named_tuple_replaced():
    State = collections.namedtuple("State", "step total")
    holder = [State(0, 0.0)]

    def f(x):
        s = holder[0]
        holder[0] = s._replace(step=s.step + 1, total=s.total + 0.5)
        return x + s.total * s.step

    return f, tensor


@counting
def warm_up_of_a_rate(x, step):
    return x * (min(1.0, step / 1000) * 0.1)


@counting
def corrections_of_moving_averages(x, step):
    return x * math.sqrt(1 - math.pow(0.99, step + 1)) / (1 - math.pow(0.9, step + 1))


@counting
def every_hundredth_step(x, step):
    if step % 100 == 0:
        return x - 1
    return x + step


@counting
def alternating_branch(x, step):
    return x + step if step % 2 else x * step


@program
def flag_that_flips():
    state = types.SimpleNamespace(flag=False)

    def f(x):
        state.flag = not state.flag
        return x + 1 if state.flag else x - 1

    return f, tensor


@program
def rate_as_an_argument():
    return (lambda x, rate, step: x * rate + step), (lambda step: (*tensor(step), 0.1 * 0.9**step, step))


@program
def counter_from_itertools():
    numbers = itertools.count()

    def f(x):
        return x + next(numbers)

    return f, tensor


@program
def largest_so_far():
    state = types.SimpleNamespace(best=0, count=0)

    def f(x, value):
        state.best = max(state.best, value)
        state.count += value > 3
        return x * state.best + state.count

    return f, (lambda step: (*tensor(step), step))


@program
def counter_that_starts_absent():
    state = types.SimpleNamespace()

    def f(x):
        state.step = getattr(state, "step", 0) + 1
        return x + state.step

    return f, tensor


@program
def counter_that_starts_as_None():
    state = types.SimpleNamespace(step=None)

    def f(x):
        state.step = 0 if state.step is None else state.step + 1
        return x + state.step

    return f, tensor


@program
def counter_of_a_function():
    def f(x):
        f_state["calls"] = f_state.get("calls", 0) + 1
        return x * f_state["calls"]

    f_state: dict[str, int] = {}
    return f, tensor


# ---- tensors


@program
def running_mean():
    state = types.SimpleNamespace(mean=torch.zeros(3), step=0)

    def f(x):
        state.step += 1
        state.mean = state.mean + (x - state.mean) / state.step
        return state.mean * 2

    return f, tensor


@program
def moving_average_in_a_buffer():
    class Average(nn.Module):
        average: torch.Tensor

        def __init__(self):
            super().__init__()
            self.register_buffer("average", torch.zeros(3))

        def forward(self, x):
            self.average.mul_(0.9).add_(x, alpha=0.1)
            return x - self.average

    return Average(), tensor


@program
def batch_norm_in_training():
    return nn.BatchNorm1d(3), (lambda step: (torch.full((4, 3), float(step)) + torch.arange(4)[:, None],))


@program
def last_input():
    state = types.SimpleNamespace(last=None)

    def f(x):
        found = x if state.last is None else x - state.last
        state.last = x
        return found * 2

    return f, tensor


@program
def growing_cache():
    cache: dict[str, torch.Tensor] = {}

    def f(x):
        cache["k"] = torch.cat([cache["k"], x]) if "k" in cache else x
        return cache["k"].sum() * x

    return f, tensor


@program
def optimizer_written_by_hand():
    weight = nn.Parameter(torch.ones(3))
    state = {"step": 0, "m": torch.zeros(3)}

    def f(x):
        with torch.no_grad():
            state["step"] += 1
            state["m"].mul_(0.9).add_(x, alpha=0.1)
            weight.sub_(state["m"] / (1 - 0.9 ** state["step"]))
        return weight * 1

    return f, tensor


@program
def ring_buffer():
    state = types.SimpleNamespace(buffer=torch.zeros(5, 3), at=0)

    def f(x):
        state.buffer[state.at] = x
        state.at = (state.at + 1) % 5
        return state.buffer.sum(0)

    return f, tensor


@program
def position_in_a_static_cache():
    state = types.SimpleNamespace(cache=torch.zeros(20, 3), length=0)

    def f(x):
        state.cache[state.length] = x
        state.length += 1
        return state.cache[: state.length].sum(0)

    return f, tensor


# ---- containers


@program
def list_of_numbers():
    history: list[float] = []

    def f(x, value):
        history.append(value)
        return x * len(history)

    return f, (lambda step: (*tensor(step), step * 0.5))


@program
def list_of_results():
    history: list[torch.Tensor] = []

    def f(x):
        history.append(x * 2)
        return history[-1] + len(history)

    return f, tensor


@program
def sum_over_a_growing_list():
    history: list[torch.Tensor] = []

    def f(x):
        history.append(x)
        return sum(history) * 2

    return f, tensor


@program
def full_deque():
    history = collections.deque([torch.zeros(3)] * 4, maxlen=4)

    def f(x):
        history.append(x)
        return sum(history)

    return f, tensor


@program
def results_by_step():
    seen: dict[int, torch.Tensor] = {}

    def f(x, step):
        seen[step] = x * 2
        return seen[step] + len(seen)

    return f, (lambda step: (*tensor(step), step))


@program
def results_by_name():
    seen: dict[str, torch.Tensor] = {}

    def f(x, name):
        if name not in seen:
            seen[name] = x * 2
        return seen[name] + 1

    return f, (lambda step: (*tensor(step), f"layer{step}"))


@program
def counts_by_key():
    counts: collections.Counter[int] = collections.Counter()

    def f(x, key):
        counts[key] += 1
        return x * counts[key]

    return f, (lambda step: (*tensor(step), step % 5))


@program
def default_dict_of_totals():
    totals: dict[int, float] = collections.defaultdict(float)

    def f(x, key):
        totals[key] += 0.5
        return x + totals[key]

    return f, (lambda step: (*tensor(step), step))


@program
def set_of_steps():
    seen: set[int] = set()

    def f(x, step):
        seen.add(step)
        return x + len(seen)

    return f, (lambda step: (*tensor(step), step))


@program
def table_by_position():
    table = [0.1, 0.2, 0.3, 0.4]

    def f(x, step):
        return x * table[step % 4]

    return f, (lambda step: (*tensor(step), step))


@program
def module_by_position():
    layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)])

    def f(x, step):
        return layers[step % 4](x)

    return f, (lambda step: (*tensor(step), step))


@program
def memo_with_a_decorator():
    @functools.lru_cache
    def scale(step):
        return step * 0.5 + 1

    return (lambda x, step: x * scale(step)), (lambda step: (*tensor(step), step % 6))


@program
def cache_of_recent_results():
    recent: collections.OrderedDict[int, torch.Tensor] = collections.OrderedDict()

    def f(x, key):
        if key in recent:
            recent.move_to_end(key)
        else:
            recent[key] = x * 2
            if len(recent) > 3:
                recent.popitem(last=False)
        return recent[key] + 1

    return f, (lambda step: (*tensor(step), step))


# ---- objects made anew, strings, hooks


@program
def configuration_made_anew():
    class Options:
        def __init__(self, rate):
            self.rate = rate

    return (lambda x, options: x * options.rate), (lambda step: (*tensor(step), Options(0.1 * step + 0.1)))


@program
def closure_made_anew():
    def scaled_by(rate):
        return lambda x: x * rate

    return (lambda x, g: g(x) + 1), (lambda step: (*tensor(step), scaled_by(step + 0.5)))


@program
def partial_made_anew():
    return (lambda x, g: g(x) + 1), (lambda step: (*tensor(step), functools.partial(torch.mul, step + 0.5)))


@program
def name_of_a_step():
    state = types.SimpleNamespace(names=[])

    def f(x, step):
        state.names.append(f"step {step}")
        return x + step

    return f, (lambda step: (*tensor(step), step))


@program
def name_with_a_prefix():
    return (
        lambda x, name: x + 1 if name.startswith("block") else x - 1,
        lambda step: (*tensor(step), f"block{step}"),
    )


@program
def hook_in_every_call():
    model = nn.Linear(3, 3)

    def f(x):
        found = []
        handle = model.register_forward_hook(lambda module, inputs, output: found.append(output))
        model(x)
        handle.remove()
        return found[0] * 2

    return f, tensor
