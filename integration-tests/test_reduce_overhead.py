"""`mode="reduce-overhead"` through the whole stack, with a recorder of the tests in place of CUDA graphs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from host.fake_recorder import FakeRecorder

import treadle
from treadle_codegen.targets.table import TARGETS


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> FakeRecorder:
    made = FakeRecorder()
    monkeypatch.setitem(TARGETS, "cpp", replace(TARGETS["cpp"], recorder=lambda device: made))
    treadle.reset()
    return made


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    )


def trained(module: torch.nn.Module, step: Any, at_once: int) -> list[float]:
    """Losses of 12 batches; the backward passes of `at_once` of them come after their forward passes."""
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    torch.manual_seed(5)
    batches = [torch.randn(8, 16) for _ in range(12)]
    found: list[float] = []
    for k in range(0, 12, at_once):
        losses = [step(batch).pow(2).mean() for batch in batches[k : k + at_once]]
        for loss in losses:
            loss.backward()
            found.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("at_once", [1, 2, 6])
def test_training_is_recorded_and_equal_to_the_last_bit(recorder: FakeRecorder, at_once: int) -> None:
    plain, other = model(), model()
    options = {"threads": 1}
    wanted = trained(plain, treadle.compile(plain, fullgraph=True, options=options), at_once)
    step = treadle.compile(other, fullgraph=True, mode="reduce-overhead", options=options)
    assert trained(other, step, at_once) == wanted
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert recorder.events.count("replay") >= 8


def test_inference_keeps_results_and_follows_new_weights(recorder: FakeRecorder) -> None:
    module = model().eval()
    run = treadle.compile(module, mode="reduce-overhead", options={"threads": 1})
    with torch.no_grad():
        inputs = [torch.randn(8, 16) for _ in range(8)]
        kept = [(run(x), module(x)) for x in inputs]
        for parameter in module.parameters():
            parameter.mul_(1.5)
        kept += [(run(x), module(x)) for x in inputs]
    for result, wanted in kept:
        torch.testing.assert_close(result, wanted)
    assert "replay" in recorder.events


def test_the_log_says_why_a_graph_is_not_recorded(recorder: FakeRecorder, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("treadle.cuda_graphs")
    with caplog.at_level(logging.INFO, logger=logger.name):
        run = treadle.compile(lambda x: torch.linalg.inv(x).sin(), mode="reduce-overhead")
        run(torch.eye(4))
    assert "launched kernel by kernel: aten.linalg_inv" in caplog.text
    assert recorder.events == []


def test_the_default_mode_records_nothing(recorder: FakeRecorder) -> None:
    run = treadle.compile(lambda x: x.sin() + 1, options={"threads": 1})
    for _ in range(4):
        run(torch.randn(4))
    assert recorder.events == []
