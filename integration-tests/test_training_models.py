"""The twelve models in training mode: one graph each, gradients against float64, losses step by step with eager's dropout masks, and
batches and lengths in two compiles."""

from __future__ import annotations

import copy

import pytest
import torch

import treadle

torchvision_schemas = pytest.importorskip("torchvision_schemas")
torchvision_schemas.define_missing_schemas()  # timm and transformers import torchvision where it is there
pytest.importorskip("transformers")
pytest.importorskip("timm")
zoo = pytest.importorskip("zoo")
training_curves = pytest.importorskip("training_curves")

import small_models  # noqa: E402
from model_training import assert_as_near_as_eager, gradients, loss_of  # noqa: E402

LENGTHS = ((2, 16), (3, 24), (1, 9), (4, 32))


def assert_one_graph() -> None:
    stats = treadle.stats()
    assert stats.graphs == 1 and not stats.breaks and not stats.eager_graphs, stats


@pytest.mark.parametrize("name", zoo.SCENARIOS)
def test_steps_and_gradients(name: str) -> None:
    scenario = zoo.SCENARIOS[name]
    inputs = scenario.inputs(2 if scenario.library == "timm" else 1)  # batch norm of a batch of 1 sees single elements
    eager = scenario.build().train()
    state = copy.deepcopy(eager.state_dict())
    model = scenario.build().train()
    fast = treadle.compile(model)
    runs = []
    for owner, run in ((eager, eager), (model, fast)):
        optimizer = torch.optim.SGD(owner.parameters(), 1e-3)
        torch.manual_seed(3)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_of(run(**inputs))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        runs.append((losses, torch.rand(1)))
    assert_one_graph()
    assert runs[1][0] == pytest.approx(runs[0][0], rel=1e-3)
    assert torch.equal(runs[0][1], runs[1][1])
    eager.load_state_dict(state)
    model.load_state_dict(state)
    treadle.reset()
    exact_model = copy.deepcopy(zoo.without_dropout(eager)).double()
    theirs = gradients(eager, eager, inputs)
    mine = gradients(zoo.without_dropout(model), treadle.compile(model), inputs)
    exact = gradients(exact_model, exact_model, zoo.in_float64(inputs))
    assert_as_near_as_eager(mine, theirs, exact)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_batches_and_lengths_in_two_compiles(name: str) -> None:
    eager = zoo.without_dropout(zoo.SCENARIOS[name].build().train())
    model = copy.deepcopy(eager)
    fast = treadle.compile(model)
    for batch, length in LENGTHS:
        inputs = {argument: torch.randint(4000, (batch, length)) for argument in zoo.SCENARIOS[name].inputs()}
        expected = gradients(eager, eager, inputs)
        for one, other in zip(gradients(model, fast, inputs), expected, strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-5 * (1 + other.abs().max().item()))
    stats = treadle.stats()
    assert stats.graphs <= 2 and not stats.eager_graphs, stats


@pytest.mark.parametrize("name", ["vit", "resnet18"])
def test_batches_of_images_in_two_compiles(name: str) -> None:
    scenario = zoo.SCENARIOS[name]
    eager = zoo.without_dropout(scenario.build().train())
    model = copy.deepcopy(eager)
    fast = treadle.compile(model)
    for batch in (2, 3, 4):
        inputs = scenario.inputs(batch)
        expected = gradients(eager, eager, inputs)
        for one, other in zip(gradients(model, fast, inputs), expected, strict=True):
            assert (one is None) == (other is None)
            if other is not None:
                torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3 * (1e-3 + other.abs().max().item()))
    stats = treadle.stats()
    assert stats.graphs <= 2 and not stats.eager_graphs, stats


@pytest.mark.parametrize(("name", "optimizer"), [("bert", "AdamW"), ("t5", "SGD"), ("resnet18", "AdamW")])
def test_losses_of_whole_steps_follow_eagers(name: str, optimizer: str) -> None:
    """Forward, loss, backward, clipping and optimizer in one function: 20 steps (all twelve models: benchmarks/loss_curves.py)."""
    found = training_curves.compare(name, optimizer, 20)
    assert found["masks"] and not found["breaks"] and not found["eager graphs"]
    assert found["graphs"] <= 2
    assert found["deviation"] <= max(1e-4, 100 * found["deviation of eager again"])


@pytest.mark.slow
@pytest.mark.parametrize("name", small_models.MODELS)
def test_a_small_model_is_trained_in_one_graph(name: str) -> None:
    """Twelve small models in training mode, five steps of AdamW: losses follow eager's, with its masks. The zoo's sizes: above."""
    model, inputs = small_models.build(name)
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules()):
        # Of 32 pixels one would be left, over which no variance is worth much.
        inputs = {"x": torch.randn(4, 3, 64, 64)}

    def trained(compiled: bool) -> list[float]:
        model, _ = small_models.build(name)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            outputs = [t for t in zoo.tensors_of(model(**inputs)) if t.is_floating_point()]
            loss = outputs[0].float().square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        call = treadle.compile(step) if compiled else step
        losses = []
        for k in range(5):
            torch.manual_seed(k)
            losses.append(call().item())
        return losses

    assert trained(True) == pytest.approx(trained(False), rel=2e-3)
    stats = treadle.stats()
    assert stats.graphs <= 3
    assert not stats.breaks
    assert not stats.eager_graphs
