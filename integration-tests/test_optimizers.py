"""`optimizer.step()` compiled alone: every optimizer of `torch.optim` with its options, against eager, with the numbers of graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import treadle

STEPS = 8


def network(name: str = "") -> nn.Sequential:
    """Two layers; Muon takes matrices only."""
    torch.manual_seed(0)
    has_bias = name != "Muon"
    return nn.Sequential(nn.Linear(4, 8, bias=has_bias), nn.ReLU(), nn.Linear(8, 3, bias=has_bias))


def assert_same_state(expected: torch.optim.Optimizer, found: torch.optim.Optimizer) -> None:
    """Equal state dicts: keys in order, types, dtypes and layouts, numbers to rounding."""
    mine, theirs = found.state_dict(), expected.state_dict()
    assert mine["state"].keys() == theirs["state"].keys()
    assert [group.keys() for group in mine["param_groups"]] == [group.keys() for group in theirs["param_groups"]]
    for key, entries in theirs["state"].items():
        assert list(mine["state"][key]) == list(entries)
        for name, value in entries.items():
            other = mine["state"][key][name]
            assert type(other) is type(value)
            if isinstance(value, torch.Tensor):
                assert (other.stride(), other.requires_grad) == (value.stride(), value.requires_grad)
                torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-6)
            else:
                assert other == value


def run_steps(name: str, options: dict[str, Any], *, schedule: bool = False, steps: int = STEPS) -> list[int]:
    """Step eager and compiled twins with the same gradients; the number of graphs after each step."""
    twins = [network(name), network(name)]
    optimizers = [getattr(torch.optim, name)(list(twin.parameters()), **copy.deepcopy(options)) for twin in twins]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in optimizers] if schedule else []
    expected, found = optimizers
    calls = [expected.step, treadle.compile(found.step)]
    graphs = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        gradients = [torch.randn(p.shape, generator=generator) for p in twins[0].parameters()]
        for twin, call in zip(twins, calls, strict=True):
            for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                parameter.grad = gradient.to_sparse() if name == "SparseAdam" else gradient.clone()
            assert call() is None
        for scheduler in schedulers:
            scheduler.step()
        graphs.append(treadle.stats().graphs)
        for mine, theirs in zip(twins[1].parameters(), twins[0].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        assert_same_state(expected, found)
    return graphs


DECOUPLED = {"weight_decay": 0.01, "decoupled_weight_decay": True}
WHOLE = {
    "SGD": [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"momentum": 0.9, "dampening": 0.1},
    ],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.01}],
    "AdamW": [{}, {"amsgrad": True}],
    "Adagrad": [{}, {"lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.1}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.01}],
    "Adadelta": [{}, {"weight_decay": 0.01}],
    "Adamax": [{}, {"weight_decay": 0.01}],
    "NAdam": [{}, DECOUPLED],
    "Rprop": [{}, {"etas": (0.4, 1.3)}],
    "Adafactor": [{}, {"weight_decay": 0.01}],
    "Muon": [{}, {"nesterov": False}],
    "ASGD": [{}, {"weight_decay": 0.01}],
}
"""Optimizers whose steps are one graph each, with sets of options."""

TABLE = [(name, options) for name, sets in WHOLE.items() for options in sets]


def has_option(name: str, option: str) -> bool:
    return option in getattr(torch.optim, name).__init__.__code__.co_varnames


@pytest.mark.parametrize(("name", "options"), TABLE, ids=[f"{name}-{k}" for k, (name, _) in enumerate(TABLE)])
@pytest.mark.parametrize("kind", ["loop", "foreach", "maximize"])
def test_a_step_is_one_graph(name, options, kind):
    added = {"loop": {}, "foreach": {"foreach": True}, "maximize": {"maximize": True}}[kind]
    if not all(has_option(name, option) for option in added):
        pytest.skip(f"{name} has no such option")
    graphs = run_steps(name, {**options, **added})
    assert graphs[0] == 1  # makes the state
    assert graphs[1] <= 2
    assert graphs[-1] == graphs[1]
    stats = treadle.stats()
    assert not stats.breaks
    assert not stats.eager_graphs
    assert len(stats.recompiles) == graphs[-1] - 1


@pytest.mark.parametrize("name", WHOLE)
def test_a_learning_rate_that_changes_is_no_recompile(name):
    graphs = run_steps(name, {}, schedule=True)
    assert graphs[1] == graphs[-1] <= 2
    assert not treadle.stats().breaks


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "RMSprop", "Rprop"])
def test_a_learning_rate_in_a_tensor_is_no_recompile(name):
    graphs = run_steps(name, {"lr": torch.tensor(0.01)}, schedule=True)
    assert graphs[1] == graphs[-1] <= 2
    assert not treadle.stats().breaks


CHANGES = {"RAdam": {}, "ASGD": {"t0": 4}}
"""Optimizers that decide on the number of the step, and decide differently at a later one."""
READY = ("SGD", "Adagrad")
"""Optimizers whose first step makes no state. The second one finds another learning rate."""


@pytest.mark.parametrize("kind", ["loop", "foreach"])
@pytest.mark.parametrize("name", [*WHOLE, *CHANGES])
def test_the_first_step_is_not_compiled(name, kind):
    """It makes the state, so that what it relies on does not hold at the next step."""
    if kind == "foreach" and not has_option(name, "foreach"):
        pytest.skip(f"{name} has no such option")
    options = {"foreach": kind == "foreach"} if has_option(name, "foreach") else {}
    with treadle.config.patch(setup_in_eager=True):
        graphs = run_steps(name, {**options, **CHANGES.get(name, {})}, schedule=True, steps=20)
    assert graphs[0] == (name in READY)
    assert graphs[1] == graphs[0] + 1
    assert graphs[-1] == graphs[1] + (name in CHANGES)
    assert not treadle.stats().breaks


FUSED = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": torch.tensor(0.01)}),
    ("Adagrad", {"lr_decay": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), FUSED, ids=[f"{name}-{k}" for k, (name, _) in enumerate(FUSED)])
def test_a_fused_step_is_one_graph_whatever_the_learning_rate(name, options):
    graphs = run_steps(name, {**options, "fused": True}, schedule=True)
    assert graphs[1] == graphs[-1] <= 2
    assert not treadle.stats().breaks
    assert not treadle.stats().eager_graphs


def test_gradients_of_a_grad_scaler():
    """Scaled gradients in two steps, one of them with an infinite one; the scale itself is Python's."""
    twins = [network(), network()]
    optimizers = [torch.optim.AdamW(twin.parameters(), fused=True) for twin in twins]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in twins]

    def step(twin: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(twin(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    for k, factor in enumerate([1.0, 1e38, 1.0]):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(k)) * factor
        for run, each in zip((step, treadle.compile(step)), zip(twins, optimizers, scalers, strict=True), strict=True):
            run(*each, x)
        assert scalers[0].state_dict() == scalers[1].state_dict()
    for mine, theirs in zip(twins[1].parameters(), twins[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert_same_state(*optimizers)


def test_a_step_behind_the_decision_of_a_grad_scaler_is_compiled():
    """`GradScaler.step` reads whether a gradient is infinite, and calls the optimizer if none is. Weights are averaged behind it."""
    treadle.reset()
    twins = [
        nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2)
    ]
    twins[1].load_state_dict(twins[0].state_dict())
    optimizers = [torch.optim.AdamW(twin.parameters()) for twin in twins]
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2) for _ in twins]
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    averages = [torch.optim.swa_utils.AveragedModel(twin, multi_avg_fn=average) for twin in twins]

    def step(twin: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, averaged: Any, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(twin(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        averaged.update_parameters(twin)

    compiled = treadle.compile(step)
    for k, factor in enumerate([1.0, 1.0, 1e38, 1.0, 1.0, 1.0]):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(k)) * factor
        if factor > 1:
            x[0] = torch.inf
        for run, each in zip((step, compiled), zip(twins, optimizers, scalers, averages, strict=True), strict=True):
            run(*each, x)
        assert scalers[0].state_dict() == scalers[1].state_dict()
        for mine, theirs in zip(averages[1].state_dict().values(), averages[0].state_dict().values(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert_same_state(*optimizers)
    stats = treadle.stats()
    assert {b.code for b in stats.breaks} == {"unbacked-decision"} and not stats.skipped
    assert max(stats.graph_nodes) > 80  # that of AdamW; the others are less than half as long


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RAdam", {}),
        ("RAdam", DECOUPLED),
        ("ASGD", {}),
        ("ASGD", {"t0": 3, "weight_decay": 0.1}),
    ],
)
@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_that_decides_on_its_count_is_one_graph_for_each_way_it_takes(name, options, foreach):
    """RAdam rectifies from its sixth step on; ASGD begins to average behind step `t0`, and in the step after that reads so."""
    graphs = run_steps(name, {**options, "foreach": foreach}, schedule=True, steps=12)
    assert graphs[0] == 1
    ways = {"RAdam": 2, "ASGD": 3 if "t0" in options and not foreach else 2 if "t0" in options else 1}[name]
    assert graphs[-1] == 1 + ways
    assert not treadle.stats().breaks
    assert not treadle.stats().eager_graphs


def test_what_is_not_compiled_is_right():
    run_steps("SparseAdam", {})


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_eager_errors_stay(name):
    """`differentiable=True` writes to leaves under gradients, which PyTorch refuses."""
    model = network()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, differentiable=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        treadle.compile(optimizer.step)()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert torch.is_grad_enabled()


def test_hooks_of_the_step_run():
    model, seen = network(), []
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: seen.append("before"))
    optimizer.register_step_post_hook(lambda opt, args, kwargs: seen.append("after"))
    step = treadle.compile(lambda: optimizer.step())
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        step()
    assert seen == ["before", "after"] * 3


def test_two_groups_with_their_own_options_and_missing_gradients():
    twins = [network(), network()]
    optimizers = [
        torch.optim.AdamW(
            [{"params": m[0].parameters()}, {"params": m[2].parameters(), "lr": 0.1, "weight_decay": 0.0}]
        )
        for m in twins
    ]
    calls = [optimizers[0].step, treadle.compile(lambda: optimizers[1].step())]
    for step in range(6):
        for twin, call in zip(twins, calls, strict=True):
            for k, parameter in enumerate(twin.parameters()):
                parameter.grad = None if k == 1 and step < 3 else torch.full_like(parameter, 0.1 * (step + 1))
            call()
        for mine, theirs in zip(twins[1].parameters(), twins[0].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert_same_state(*optimizers)
    assert not treadle.stats().breaks


def test_a_state_loaded_from_eager_goes_on():
    """A checkpoint taken in eager, compiled steps from there, and back."""
    twins = [network(), network()]
    optimizers = [torch.optim.Adam(m.parameters()) for m in twins]
    step = treadle.compile(lambda: optimizers[1].step())

    def both(call_compiled: bool) -> None:
        for twin, optimizer in zip(twins, optimizers, strict=True):
            for parameter in twin.parameters():
                parameter.grad = parameter.detach().clone()
            step() if call_compiled and optimizer is optimizers[1] else optimizer.step()

    for _ in range(3):
        both(False)
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for _ in range(3):
        both(True)
    both(False)
    for mine, theirs in zip(twins[1].parameters(), twins[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert_same_state(*optimizers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["NAdam", "ASGD", "Rprop"])
def test_numbers_of_a_loaded_state_in_the_dtype_of_the_parameters(name, dtype):
    """Loading a state casts all but step counts to the dtype of the parameters, also the numbers that a step decides on."""
    twins = [[nn.Parameter(torch.linspace(-1, 1, n).to(dtype)) for n in (3, 1, 5)] for _ in range(2)]
    optimizers = [getattr(torch.optim, name)(twin, lr=0.02) for twin in twins]
    calls = [optimizers[0].step, treadle.compile(lambda: optimizers[1].step())]
    for step in range(6):
        for twin, optimizer, call in zip(twins, optimizers, calls, strict=True):
            for k, parameter in enumerate(twin):
                parameter.grad = torch.full_like(parameter, 0.1 * (step + 1 - 2 * k))
            call()
            if step == 1:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for mine, theirs in zip(optimizers[1].state.values(), optimizers[0].state.values(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0.02, atol=1e-3)


def test_torch_compile_in_the_same_process_changes_nothing():
    """From its first use on, PyTorch's compiler leaves parts of `torch.optim` to Python."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert run_steps("AdamW", {})[-1] == 2
    assert not treadle.stats().breaks


# ---- forward, loss, backward and step in one function

ALL = sorted(
    name
    for name, found in vars(torch.optim).items()
    if isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and found is not torch.optim.Optimizer
)
SCHEDULERS = {
    "exponential": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
    "one_cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
    "warm_up": lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3),
}


def training_step(name: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """A function of inputs and targets that trains the model for a step."""
    x, y = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)), torch.ones(4, 3)

    def loss_and_gradients() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss

    def step() -> torch.Tensor:
        loss = loss_and_gradients()
        optimizer.step()
        return loss

    return (lambda: optimizer.step(loss_and_gradients)) if name == "LBFGS" else step


def train(name: str, compiles: bool, schedule: Any = None, **options: Any) -> list[torch.Tensor]:
    model = nn.Sequential(nn.Embedding(4, 3, sparse=True)) if name == "SparseAdam" else network(name)
    optimizer = getattr(torch.optim, name)(list(model.parameters()), **options)
    if name == "SparseAdam":
        torch.manual_seed(0)
        nn.init.normal_(model[0].weight)
        rows = torch.tensor([0, 2, 2])

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(rows).pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss
    else:
        step = training_step(name, model, optimizer)
    scheduler = schedule(optimizer) if schedule is not None else None
    run = treadle.compile(step) if compiles else step
    losses = []
    for _ in range(5):
        losses.append(run().detach())
        if scheduler is not None:
            scheduler.step()
    return [*losses, *[parameter.detach() for parameter in model.parameters()]]


@pytest.mark.parametrize("name", ALL)
def test_five_steps_of_training(name):
    torch.testing.assert_close(train(name, True), train(name, False), rtol=1e-4, atol=1e-5)
    # torch.compile, once it has run in a process, wraps these steps; Python then calls their parts, which are compiled on their own.
    is_wrapped = hasattr(getattr(torch.optim, name).step, "_torchdynamo_orig_callable")
    assert treadle.stats().graphs <= (4 if is_wrapped else 2)
    if name in WHOLE:
        assert not treadle.stats().breaks


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])
def test_schedulers_are_no_recompile(name, kind):
    options = {"lr": 0.01} | ({} if name == "AdamW" else {"momentum": 0.9})
    expected = train(name, False, SCHEDULERS[kind], **options)
    torch.testing.assert_close(train(name, True, SCHEDULERS[kind], **options), expected, rtol=1e-4, atol=1e-5)
    assert treadle.stats().graphs <= 2


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
@pytest.mark.parametrize("option", ["foreach", "fused"])
def test_implementations(name, option):
    expected = train(name, False, lr=0.01, **{option: True})
    torch.testing.assert_close(train(name, True, lr=0.01, **{option: True}), expected, rtol=1e-4, atol=1e-5)
    assert treadle.stats().graphs <= 2


def test_guards_of_whole_steps_grow_with_the_model():
    """Momentum buffers are dicts, as modules' own are; which of them are different objects takes one guard, not one for each pair."""

    def guards(layers: int) -> int:
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            return loss

        step()
        return len(treadle.explain(step)().guards)

    assert guards(40) < 2.3 * guards(20)
