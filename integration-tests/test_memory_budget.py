"""`memory_budget` and checkpoints: less memory between forward and backward, the same losses and gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treadle


def saved_bytes(run: Callable[[], torch.Tensor], parameters: list[torch.Tensor]) -> int:
    """Distinct storages that autograd keeps for backward, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in parameters}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run().backward()
    return sum(t.untyped_storage().nbytes() for address, t in kept.items() if address not in own)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(self.norm(x))


class Model(nn.Module):
    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        self.kind = kind
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.kind == "plain" else checkpoint(block, x, use_reentrant=self.kind == "reentrant")
        return x.square().mean()


def step(model: nn.Module, run: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[Any, int]:
    for parameter in model.parameters():
        parameter.grad = None
    run(x)  # compiled, outside the count
    torch.manual_seed(5)
    n_bytes = saved_bytes(lambda: run(x), list(model.parameters()))
    return [p.grad for p in model.parameters()], n_bytes


def test_a_smaller_budget_saves_less_and_changes_nothing() -> None:
    eager = Model()
    x = torch.randn(16, 32)
    expected, by_eager = step(eager, eager, x)
    sizes = []
    for budget in (1.0, 0.6, 0.3, 0):
        model = copy.deepcopy(eager)
        grads, n_bytes = step(model, treadle.compile(model, options={"memory_budget": budget}), x)
        sizes.append(n_bytes)
        for one, other in zip(grads, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4
    assert sizes[0] <= by_eager and sizes[-1] < by_eager / 5
    assert not treadle.stats().eager_graphs


@pytest.mark.parametrize(("kind", "memory_budget"), [("reentrant", 1.0), ("not reentrant", 1.0), ("plain", 0.0)])
def test_dropout_draws_eagers_masks_again(kind: str, memory_budget: float) -> None:
    eager = Model(kind)
    x = torch.randn(400, 32, requires_grad=True)
    expected, _ = step(eager, eager, x)
    state = torch.get_rng_state()
    model = copy.deepcopy(eager)
    run = treadle.compile(model, options={"memory_budget": memory_budget})
    grads, n_bytes = step(model, run, x)
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert torch.equal(torch.get_rng_state(), state)
    masks, values = 4 * 400 * 32, 4 * 400 * 32
    assert n_bytes < 5 * values + masks / 2  # what the blocks and the loss start from, and states in place of the masks


@pytest.mark.parametrize("kind", ["reentrant", "not reentrant"])
def test_checkpointed_parts_are_computed_again(kind: str) -> None:
    torch.manual_seed(0)
    eager, plain, model = Model(kind), Model(), Model(kind)
    plain.load_state_dict(eager.state_dict())
    model.load_state_dict(eager.state_dict())
    x = torch.randn(16, 32, requires_grad=True)
    expected, _ = step(eager, eager, x)
    _, whole = step(plain, treadle.compile(plain), x)
    grads, n_bytes = step(model, treadle.compile(model), x)
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    # Of every block, its argument and the mask: 32 floats and 32 bytes a row. Plain, 128 floats more.
    assert n_bytes < whole / 3
    stats = treadle.stats()
    assert not stats.eager_graphs and not stats.breaks


def test_a_checkpointed_batch_norm_updates_its_statistics_twice_as_in_eager() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    other = copy.deepcopy(norm)
    x = torch.randn(6, 8, requires_grad=True)
    for module, run in ((norm, lambda f: f), (other, treadle.compile)):
        run(lambda x, m=module: checkpoint(m, x, use_reentrant=False).square().sum())(x).backward()
    assert other.num_batches_tracked == norm.num_batches_tracked == 2
    torch.testing.assert_close(other.running_mean, norm.running_mean)
    assert "checkpoint-writes" in {found.code for found in treadle.stats().breaks}
    treadle.reset()
    norm.eval()
    treadle.compile(lambda x: checkpoint(norm, x, use_reentrant=False).square().sum())(x).backward()
    assert not treadle.stats().breaks


def test_the_report_of_a_partition() -> None:
    model = Model("not reentrant")
    explanation = treadle.explain(model)(torch.randn(16, 32))
    (report,) = explanation.partitions
    assert "saved for backward" in str(explanation)
    assert any(value.why == "in a checkpointed part" for value in report.recomputed)
    assert all(__file__ in value.line or "torch" in value.line for value in report.saved if value.bytes)
    with torch.no_grad():
        assert not treadle.explain(model)(torch.randn(16, 32)).partitions


@pytest.mark.parametrize("bad", [2.0, -1, "all", True])
def test_bad_budgets(bad: Any) -> None:
    with pytest.raises(ValueError, match="memory_budget"):
        treadle.compile(F.relu, options={"memory_budget": bad})


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_graph_break_inside_a_checkpointed_part(use_reentrant: bool) -> None:
    seen: list[int] = []

    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x @ w)
        seen.append(int(h.sum() > 1e9))  # breaks the graph
        return F.dropout(torch.sin(h) @ w, 0.5)

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x * 2, w, use_reentrant=use_reentrant).square().sum()

    found = []
    for run in (program, treadle.compile(program)):
        torch.manual_seed(0)
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        for _ in range(2):
            run(x, w).backward()
        found.append((x.grad, w.grad, len(seen)))
        seen.clear()
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


class _Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.sin(torch.tanh(self.linear(x)))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_part_writes_to_objects_as_often_as_in_eager(use_reentrant: bool) -> None:
    seen: list[str] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append("block")
        local = [1]
        local.append(2)
        return torch.tanh(x).sin() * len(local)

    found = []
    for wrap in (lambda function: function, treadle.compile):
        module = _Counts()

        def program(x: torch.Tensor, module: _Counts = module) -> torch.Tensor:
            y = checkpoint(module, x * 2, use_reentrant=use_reentrant)
            return checkpoint(block, y, use_reentrant=use_reentrant).sum()

        run = wrap(program)
        for _ in range(2):
            run(torch.ones(2, 4, requires_grad=True)).backward()
        found.append((module.calls, len(seen)))
        seen.clear()
    assert found[0] == found[1] == (4, 4)
