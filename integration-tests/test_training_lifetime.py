"""Long runs, interrupted steps, and backward passes that eager refuses."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import treadle


def test_ten_thousand_steps_leak_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
    fast = treadle.compile(lambda x: (model[:3](x), model(x)))  # the second is computed from nothing that is given out
    pair = treadle.compile(lambda h: (h * 2, torch.sin(h * 2)))  # the second is computed from the first
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x = torch.randn(3, 4)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())

    def steps(n: int) -> None:
        for k in range(n):
            optimizer.zero_grad()
            hidden, out = fast(x)
            _, second = pair(hidden)
            (second.sum() + out.square().mean()).backward(retain_graph=k % 100 == 0)
            optimizer.step()

    steps(200)
    before, blocks = tensors(), len(gc.get_objects())
    steps(10_000)
    assert tensors() <= before
    assert len(gc.get_objects()) <= blocks + 200
    assert not treadle.stats().eager_graphs


def test_an_observed_pass_leaks_nothing() -> None:
    """Hooks, `create_graph=True` and gradients of intermediate outputs run the graph again; that goes away, too."""
    import weakref

    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = torch.tanh(x @ w)
        return x * 2, hidden, torch.sin(hidden)

    fast = treadle.compile(program)
    refs = []
    for kind in ("hook", "create_graph", "grad of output"):
        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        _, hidden, out = fast(x, w)
        if kind == "hook":
            hidden.register_hook(lambda g: g * 2)
            out.sum().backward()
        elif kind == "create_graph":
            grads = torch.autograd.grad(out.sum(), [x, w], create_graph=True)
            sum(g.square().sum() for g in grads).backward()
            del grads
        else:
            torch.autograd.grad(out.sum(), hidden)
        refs += [weakref.ref(t) for t in (x, w, hidden, out)]
        del x, w, hidden, out, _
    gc.collect()
    assert [reference() for reference in refs] == [None] * len(refs)


@pytest.mark.parametrize("where", ["forward", "backward", "saving", "first step"])
def test_an_interrupted_step_leaves_a_usable_state(where: str) -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 1))
    model = copy.deepcopy(eager)
    x = torch.randn(6, 4)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    def train(owner: nn.Module, run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(owner.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(1)
        for k in range(6):
            if k == (0 if where == "first step" else 3):
                state = copy.deepcopy(owner.state_dict()), torch.get_rng_state()
                handle = None
                if where == "forward":
                    handle = owner[4].register_forward_pre_hook(interrupt)
                elif where != "saving":
                    handle = owner[4].bias.register_hook(interrupt)
                with pytest.raises(KeyboardInterrupt):
                    if where == "saving":
                        with torch.autograd.graph.saved_tensors_hooks(interrupt, interrupt):
                            run(x)
                    run(x).sum().backward()
                if handle is not None:
                    handle.remove()
                owner.load_state_dict(state[0])
                torch.set_rng_state(state[1])
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
        return list(owner.state_dict().values())

    expected = train(eager, eager)
    for one, other in zip(train(model, treadle.compile(model)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["second backward", "parameter changed", "input changed"])
def test_what_eager_refuses_is_refused_in_its_words(kind: str) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.tanh(x @ w) @ w)

    messages = []
    for run in (program, treadle.compile(program)):
        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        given = x * 1
        out = run(given, w)
        with torch.no_grad():
            for changed, tensor in (("parameter changed", w), ("input changed", given)):
                if kind == changed:
                    tensor.add_(1)
        with pytest.raises(RuntimeError) as error:
            for _ in range(2):
                out.sum().backward()
        messages.append(str(error.value).partition(":")[0].partition(" (")[0])
    assert messages[0] == messages[1]


def test_replaying_both_graphs_gives_the_joint_graphs_values_to_the_bit() -> None:
    from torch import fx

    from treadle_autograd.joint import trace_joint
    from treadle_autograd.partition import classify, min_cut, save_everything, split, with_budget

    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True).train()
    found = []

    def replay(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> object:
        joint = trace_joint(gm, example_inputs, {})
        assert joint is not None
        classes = classify(joint)
        primals = [*joint.contract.static_tensors, *example_inputs]
        values = [p.detach() for p in primals]
        tangents = [torch.randn(node.meta["val"].shape) for node in joint.graph.find_nodes(op="placeholder")][
            joint.n_primals :
        ]
        torch.manual_seed(2)
        expected = fx.GraphModule(nn.Module(), joint.graph)(*values, *tangents)
        for partition in (min_cut, save_everything, with_budget(0.5), with_budget(0)):
            halves = split(classes, partition(classes))
            torch.manual_seed(2)
            results = halves.forward(*values)
            rest = iter(results[joint.n_outputs :])
            saved = [next(rest) if place is None else values[place] for place in halves.primals]
            wanted = [k for k, reads in enumerate(halves.reads) if reads is not None]
            gradients = halves.backward(wanted)(*saved, *rest, *tangents)
            found.append(
                all(
                    torch.equal(a, b)
                    for a, b in zip(
                        [*results[: joint.n_outputs], *gradients],
                        [*expected[: joint.n_outputs], *[expected[joint.n_outputs + k] for k in wanted]],
                        strict=True,
                    )
                )
            )
        return gm.forward

    treadle.compile(model, backend=replay)(torch.randn(2, 5, 16))
    assert found == [True] * 4


class Remembering(nn.Module):
    """A state that is a result of the last call and that the next one reads only the shape of, or detaches."""

    def __init__(self, detaches: bool) -> None:
        super().__init__()
        self.layer, self.detaches = nn.Linear(4, 4), detaches
        self.register_buffer("state", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.state.detach() if self.detaches else torch.zeros_like(self.state)
        for _ in range(3):
            state = state * 0.9 + self.layer(x).tanh()
        self.state = state
        return state * 2


def _tensors() -> int:
    gc.collect()
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())


def _assert_none_are_left(step: Callable[[], None]) -> None:
    """Steps leave no tensors behind, once the first ones have been compiled."""
    for _ in range(5):
        step()
    before = _tensors()
    for _ in range(10):
        step()
    assert _tensors() <= before


@pytest.mark.parametrize("detaches", [False, True])
def test_states_from_call_to_call_keep_no_earlier_calls_alive(detaches: bool) -> None:
    model = Remembering(detaches)
    compiled, parameters = treadle.compile(model), list(model.parameters())

    def step() -> None:
        torch.autograd.grad(compiled(torch.randn(3, 4)).sum(), parameters)

    _assert_none_are_left(step)


def test_what_is_written_to_in_place_keeps_no_call_alive() -> None:
    """The new history of such an input leads to the call that has written it."""
    layer = nn.Linear(4, 4)

    def add(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total += layer(x).tanh().mean()
        return total / 3

    compiled = treadle.compile(add)

    def step() -> None:
        total = layer(torch.ones(2, 4)).sum()
        for _ in range(3):
            mean = compiled(total, torch.randn(3, 4))
        torch.autograd.grad(mean + total, layer.weight)

    _assert_none_are_left(step)


def test_kept_losses_keep_no_batches_alive() -> None:
    """After a backward pass that keeps no graph, as in eager."""
    layer = nn.Linear(4, 4)
    compiled = treadle.compile(lambda x: layer(x).tanh().square().mean())
    losses, batches = [], []
    for keeps in (False, False, True):
        x = torch.randn(3, 4)
        batches.append(weakref.ref(x))
        losses.append(compiled(x))
        losses[-1].backward(retain_graph=keeps)
        del x
    gc.collect()
    assert [batch() is None for batch in batches] == [True, True, False]
    losses[-1].backward()
    gc.collect()
    assert batches[-1]() is None
    with pytest.raises(RuntimeError, match="second time"):
        losses[-1].backward()
