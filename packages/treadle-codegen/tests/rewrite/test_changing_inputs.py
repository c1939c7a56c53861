"""Where parameters change from call to call, nothing is derived from them any more; where they rest, it is again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

import treadle_codegen
from treadle_codegen import CodegenOptions, CodegenUnavailable, CompiledGraph

TIMES = 10


def compiled(cache: Path, w: torch.Tensor, x: torch.Tensor) -> CompiledGraph:
    def conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.relu(F.conv2d(x, w, padding=1))

    options = CodegenOptions(cache_dir=cache)
    return treadle_codegen.compile_graph(capture(conv, [x, w], static=(1,)), [x, w], options=options)


@pytest.fixture
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 32, 3, 3), torch.randn(1, 32, 14, 14)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often weights have been packed."""
    from treadle_codegen.rewrite.static import Prologue

    count, call = [0], Prologue.__call__

    def counting(self: Prologue, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        before = self._kept
        values = call(self, args)
        count[0] += self._kept is not before
        return values

    monkeypatch.setattr(Prologue, "__call__", counting)
    return count


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda w: w.mul_(1.01),
    "behind the version counter": lambda w: w.data.mul_(1.01),
}


def check(run: CompiledGraph, x: torch.Tensor, w: torch.Tensor) -> None:
    torch.testing.assert_close(run(x, w)[0], F.relu(F.conv2d(x, w, padding=1)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_change_in_every_call(
    change: str, tensors: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, counted: list[int]
) -> None:
    w, x = tensors
    run = compiled(tmp_path, w, x)
    for _ in range(TIMES):
        CHANGES[change](w)
        check(run, x, w)
    assert 1 <= counted[0] <= 4


def test_weights_that_rest_are_packed_again(
    tensors: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, counted: list[int]
) -> None:
    w, x = tensors
    run = compiled(tmp_path, w, x)
    for _ in range(TIMES):
        w.mul_(1.01)
        check(run, x, w)
    given_up = counted[0]
    for _ in range(60):
        check(run, x, w)
    assert counted[0] == given_up + 1
    w.mul_(2)
    check(run, x, w)
    assert counted[0] == given_up + 2


def test_weights_that_change_now_and_then_stay_packed(
    tensors: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, counted: list[int]
) -> None:
    w, x = tensors
    run = compiled(tmp_path, w, x)
    for k in range(200):
        if k % 20 == 0:
            w.mul_(1.01)
        check(run, x, w)
    assert counted[0] == 10


def test_any_order_of_calls_and_changes(tensors: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    w, x = tensors
    run, choose = compiled(tmp_path, w, x), random.Random(1)
    for _ in range(300):
        for _ in range(choose.choice([0, 0, 1, 1, 2])):
            CHANGES[choose.choice(list(CHANGES))](w)
        check(run, x, w)
        if choose.random() < 0.1:
            w.data = torch.randn(32, 32, 3, 3)
        if choose.random() < 0.02:
            for _ in range(40):
                check(run, x, w)


def test_a_graph_that_cannot_be_made_without_goes_on(
    tensors: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = tensors
    run = compiled(tmp_path, w, x)

    def fail(*_args: object) -> CompiledGraph:
        raise CodegenUnavailable("no compiler any more")

    monkeypatch.setattr("treadle_codegen.pipeline.compile_anew", fail)
    for _ in range(TIMES):
        w.mul_(1.01)
        check(run, x, w)
