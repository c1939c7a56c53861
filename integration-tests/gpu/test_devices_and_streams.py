"""Streams, several devices, tensors that move between devices, fake tensors."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import treadle

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin() * 2, -1).cumsum(0)


@pytest.mark.only_cuda
def test_another_stream(device: torch.device) -> None:
    compiled = treadle.compile(function)
    x = torch.randn(500, 300, device=device)
    compiled(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # work on the wrong stream would run before the write that follows
        y = x * 3
        actual = compiled(y)
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close(actual, function(x * 3))


@pytest.mark.only_cuda
def test_two_streams_at_the_same_time(device: torch.device) -> None:
    compiled = treadle.compile(function)
    xs = [torch.randn(200, 100, device=device) for _ in range(2)]
    compiled(xs[0])
    expected = [function(x) for x in xs]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[], []]
    for _ in range(20):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[k].append(compiled(xs[k]))
    torch.cuda.synchronize()
    for found, wanted in zip(results, expected, strict=True):
        for one in found:
            torch.testing.assert_close(one, wanted)


@pytest.mark.only_cuda
def test_threads_with_a_stream_each(device: torch.device) -> None:
    compiled = treadle.compile(function)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for k in range(10):
                    x = torch.full((50 + seed, 30), float(k), device=device)
                    torch.testing.assert_close(compiled(x), function(x))
        except BaseException as error:  # raised in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors, errors


@pytest.mark.only_cuda
def test_a_call_does_not_wait_for_the_device(device: torch.device) -> None:
    compiled = treadle.compile(lambda x: x * 2 + 1)
    x = torch.ones(1000, device=device)
    compiled(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    compiled(x)
    assert not torch.cuda.current_stream().query(), "the call waited"
    torch.cuda.synchronize()


def test_results_move_to_the_cpu_and_back(device: torch.device) -> None:
    def moves(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).cpu() + 1
        return y.to(x.device) * x

    x = torch.randn(33, device=device)
    torch.testing.assert_close(treadle.compile(moves)(x), moves(x))


def test_numbers_read_from_the_device(device: torch.device) -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() + x.shape[0]

    compiled = treadle.compile(reads)
    for n in (3, 4, 5):
        x = torch.randn(n, device=device)
        torch.testing.assert_close(compiled(x), reads(x))


@needs_two
@pytest.mark.only_cuda
def test_the_second_device() -> None:
    compiled = treadle.compile(function)
    for index in (0, 1, 0):
        x = torch.randn(40, 50, device=f"cuda:{index}")
        actual = compiled(x)
        assert actual.device == x.device and torch.cuda.current_device() == 0
        torch.testing.assert_close(actual, function(x))


@needs_two
@pytest.mark.only_cuda
def test_tensors_on_two_devices_raise_as_in_eager() -> None:
    x, y = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    with pytest.raises(RuntimeError, match="same device"):
        treadle.compile(torch.add)(x, y)


@pytest.mark.only_cuda
def test_tensors_on_cpu_and_gpu_raise_as_in_eager(device: torch.device) -> None:
    x, y = torch.ones(3, device=device), torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        treadle.compile(lambda x, y: x * 2 + y)(x, y)


def test_fake_tensors(device: torch.device) -> None:
    compiled = treadle.compile(function)
    with FakeTensorMode():
        fake = compiled(torch.empty(4, 5, device=device))
    assert fake.shape == (4, 5) and fake.device.type == device.type
    x = torch.randn(4, 5, device=device)
    torch.testing.assert_close(compiled(x), function(x))


def test_meta_tensors() -> None:
    assert treadle.compile(function)(torch.empty(4, 5, device="meta")).shape == (4, 5)
