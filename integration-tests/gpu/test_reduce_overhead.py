"""`mode="reduce-overhead"`: replays as CUDA graphs give eager's results, and earlier outputs stay intact."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import treadle


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
