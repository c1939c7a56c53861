"""`mode="reduce-overhead"`: replays as CUDA graphs give eager's results, and earlier outputs stay intact."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import treadle
from treadle_codegen.host.replay import ReplayedGraph
from treadle_codegen.targets.triton.cuda_graphs import CudaGraphs


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin() * 2, -1) + x


def replayed(compute):
    return treadle.compile(compute, mode="reduce-overhead")


def test_outputs_that_are_alive_stay_intact(device: torch.device) -> None:
    compiled = replayed(function)
    xs = [torch.randn(64, 32, device=device) for _ in range(8)]
    results = [compiled(x) for x in xs]
    for x, result in zip(xs, results, strict=True):
        torch.testing.assert_close(result, function(x))


def test_an_output_is_the_next_input(device: torch.device) -> None:
    compiled = replayed(function)
    x = torch.randn(64, 32, device=device)
    mine = theirs = x
    for _ in range(8):
        mine, theirs = compiled(mine), function(theirs)
        torch.testing.assert_close(mine, theirs)


def test_views_of_outputs_stay_intact(device: torch.device) -> None:
    compiled = replayed(lambda x: (x * 2)[1:])
    kept = []
    for k in range(6):
        kept.append(compiled(torch.full((5, 3), float(k), device=device)).t()[0])
    for k, view in enumerate(kept):
        assert view.tolist() == [2.0 * k] * 4


def test_random_numbers_advance_as_in_eager(device: torch.device) -> None:
    def drops(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand_like(x)

    compiled = replayed(drops)
    x = torch.ones(1000, device=device)
    torch.manual_seed(4)
    expected = [*[drops(x) for _ in range(6)], torch.rand(3, device=device)]
    torch.manual_seed(4)
    actual = [*[compiled(x) for _ in range(6)], torch.rand(3, device=device)]
    torch.testing.assert_close(actual, expected)


def test_several_shapes(device: torch.device) -> None:
    compiled = replayed(function)
    for _ in range(3):
        for n in (4, 64, 5, 100):
            x = torch.randn(n, 2 * n, device=device)
            torch.testing.assert_close(compiled(x), function(x))


def test_several_functions_share_memory(device: torch.device) -> None:
    functions = [function, lambda x: x.cumsum(0) * 2, lambda x: (x @ x.t()).relu()]
    compiled = [replayed(each) for each in functions]
    kept = []
    for k in range(5):
        x = torch.randn(32, 16, device=device)
        kept += [(fast(x), slow(x)) for fast, slow in zip(compiled, functions, strict=True)]
    for one, other in kept:
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_training(device: torch.device) -> None:
    def build() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.LayerNorm(64)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(64, 8)).to(device)

    losses = []
    for wrap in (lambda model: model, replayed):
        model = build()
        run, optimizer = wrap(model), torch.optim.AdamW(model.parameters(), 1e-2)
        torch.manual_seed(7)
        found = []
        for _ in range(8):
            x = torch.randn(16, 32, device=device)
            optimizer.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_gradients_accumulate(device: torch.device) -> None:
    weight = torch.randn(16, 16, device=device, requires_grad=True)
    compiled = replayed(lambda x: (x @ weight).relu().sum())
    xs = [torch.randn(4, 16, device=device) for _ in range(5)]
    for x in xs:
        compiled(x).backward()
    mine, weight.grad = weight.grad, None
    for x in xs:
        (x @ weight).relu().sum().backward()
    torch.testing.assert_close(mine, weight.grad, rtol=1e-3, atol=1e-3)


def test_a_parameter_changed_in_place_is_seen(device: torch.device) -> None:
    linear = torch.nn.Linear(8, 8).to(device)
    compiled = replayed(linear)
    x = torch.randn(3, 8, device=device)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(compiled(x), linear(x))
            linear.weight.mul_(1.5)
        linear.weight.data = torch.randn(8, 8, device=device)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), linear(x))


def test_inputs_written_in_place(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    compiled = replayed(function)
    x = torch.zeros(10, device=device)
    for k in range(6):
        assert compiled(x).tolist() == [2.0 * (k + 1)] * 10
    assert x.tolist() == [6.0] * 10


@pytest.fixture
def replayed_graphs(monkeypatch: pytest.MonkeyPatch) -> list[ReplayedGraph]:
    """All that are made during the test."""
    found: list[ReplayedGraph] = []
    make = ReplayedGraph.__init__

    def watched(self: ReplayedGraph, *args: Any) -> None:
        make(self, *args)
        found.append(self)

    monkeypatch.setattr(ReplayedGraph, "__init__", watched)
    return found


@pytest.mark.only_cuda
def test_calls_are_replayed_also_after_all_recordings_are_gone(
    device: torch.device, replayed_graphs: list[ReplayedGraph]
) -> None:
    for _ in range(2):
        compiled = replayed(lambda x: function(x) @ x)
        for _ in range(6):
            compiled(torch.randn(32, 32, device=device))
        assert replayed_graphs and all(graph.replays >= 3 for graph in replayed_graphs), [
            graph.why_not for graph in replayed_graphs
        ]
        replayed_graphs.clear()
        del compiled
        treadle.reset()
        gc.collect()


@pytest.mark.only_cuda
def test_calls_on_several_streams(device: torch.device) -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        return (function(x) @ x).exp().sin()

    compiled = replayed(chain)
    inputs = [torch.randn(512, 512, device=device) / 30 for _ in range(12)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for k, x in enumerate(inputs):
        with torch.cuda.stream(streams[k % 3]):
            results.append(compiled(x))
    torch.cuda.synchronize()
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, chain(x), rtol=1e-3, atol=1e-3)


@pytest.mark.only_cuda
def test_inputs_of_any_alignment_and_layout(device: torch.device) -> None:
    compiled = replayed(lambda x: x.sin() + 1)
    memory = torch.randn(4097, device=device)
    for x in (memory[:4096], memory[1:], memory[3:1003], memory[:0], memory[::2], memory[:4096].view(64, 64).t()):
        for _ in range(4):
            torch.testing.assert_close(compiled(x), x.sin() + 1)


@pytest.mark.only_cuda
@pytest.mark.parametrize("at_once", [1, 3])
def test_training_is_that_of_the_default_mode_to_the_last_bit(device: torch.device, at_once: int) -> None:
    """`at_once`: how many forward passes come before their backward passes."""

    def trained(mode: str) -> list[float]:
        torch.manual_seed(0)
        layers = [
            layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
        ]
        module = torch.nn.Sequential(*layers).to(device)
        run, optimizer, found = treadle.compile(module, mode=mode), torch.optim.SGD(module.parameters(), 0.01), []
        torch.manual_seed(3)
        for _ in range(4):
            losses = [run(torch.randn(16, 64, device=device)).pow(2).mean() for _ in range(at_once)]
            for loss in losses:
                loss.backward()
                found.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return found

    assert trained("reduce-overhead") == trained("default")


@pytest.mark.only_cuda
def test_a_recording_that_waits_for_the_device_is_refused(device: torch.device) -> None:
    recorder, x = CudaGraphs(torch.device("cuda", 0)), torch.ones(100, device=device)
    with pytest.raises(RuntimeError):
        recorder.record(lambda: print((x + torch.rand_like(x)).sum().item()))
    torch.rand(10, device=device)
    assert (x + 1).sum().item() == 200
    again, made = CudaGraphs(torch.device("cuda", 0)), torch.zeros(100, device=device)
    replay = again.record(lambda: made.copy_(x + 1))
    with again.in_order():
        replay()
    assert made.sum().item() == 200


@pytest.mark.only_cuda
def test_graphs_share_the_memory_of_temporaries_and_give_it_back(device: torch.device) -> None:
    functions = [treadle.compile(lambda x, k=k: ((x + k) @ x).sin() @ x) for k in range(4)]
    x = torch.randn(2048, 2048, device=device) / 50
    for run in functions:
        run(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    for run in functions:
        run(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held


@pytest.mark.only_cuda
def test_inside_the_users_capture(device: torch.device) -> None:
    """A compiled function in a CUDA graph that the user captures: its kernels are recorded like eager's."""
    for mode in ("default", "reduce-overhead"):
        treadle.reset()
        compiled = treadle.compile(function, mode=mode)
        x = torch.randn(64, 32, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compiled(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(result, function(x))
