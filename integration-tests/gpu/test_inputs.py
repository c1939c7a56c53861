"""Inputs of odd layout, size, dtype and place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import treadle

LAYOUTS = {
    "transposed": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "flipped": lambda x: x.flip(0)[1:],
    "expanded": lambda x: x[:1].expand(9, -1),
    "offset": lambda x: x.flatten()[1:1001],
    "offset of two": lambda x: x.flatten()[2:1001].reshape(37, 27),
    "channels last": lambda x: x[:16, :30].reshape(2, 8, 5, 6).to(memory_format=torch.channels_last),
    "windows": lambda x: x.flatten().unfold(0, 8, 3),
    "one element": lambda x: x[3, 3],
    "one row": lambda x: x[3:4],
}
ZERO = ((0,), (0, 5), (5, 0), (3, 0, 4))


def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.tanh(x) * 2 + 1, x.sum(-1), torch.softmax(x, -1), x.reshape(-1) + 1


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16])
def test_layouts(name: str, dtype: torch.dtype, device: torch.device, check) -> None:
    x = LAYOUTS[name](torch.randn(40, 50, device=device, dtype=dtype))
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-4)
    check(program, x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_integers(dtype: torch.dtype, device: torch.device, check) -> None:
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (33, 65), device=device).to(dtype)
    check(lambda x: (x + x, x.sum(), x.sum(0), x.float().mean(), x == 1, x.max(), x * 2.5), x)


@pytest.mark.parametrize("shape", ZERO)
def test_zero_size(shape: tuple[int, ...], device: torch.device, check) -> None:
    x = torch.randn(shape, device=device)
    check(lambda x: (x * 2 + 1, x.sum(), x.sum(-1), torch.cat([x, x]), x.t() if x.dim() == 2 else x), x)


def test_an_aligned_call_before_an_unaligned_one_and_after(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).relu() + 1

    compiled = treadle.compile(function)
    data = torch.randn(4100, device=device)
    for x, y in ((0, 0), (1, 0), (0, 3), (4, 1), (0, 0)):
        a, b = data[x : x + 4096], data[y : y + 4096]
        torch.testing.assert_close(compiled(a, b), function(a, b))


def test_inputs_that_overlap_are_written(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y.mul_(2)
        return x + y

    data = torch.arange(20.0, device=device)
    theirs, mine = data.clone(), data.clone()
    expected = function(theirs[:15], theirs[5:])
    actual = treadle.compile(function)(mine[:15], mine[5:])
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(mine, theirs)


def test_the_same_tensor_twice(device: torch.device) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    theirs, mine = torch.ones(100, device=device), torch.ones(100, device=device)
    torch.testing.assert_close(treadle.compile(function)(mine, mine), function(theirs, theirs))
    torch.testing.assert_close(mine, theirs)


def test_scalars_on_the_cpu(device: torch.device, check) -> None:
    x = torch.randn(100, 3, device=device)
    for scalar in (torch.tensor(2.5), torch.tensor(3), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True)):
        treadle.reset()
        check(lambda x, s: (x * s + 1, torch.where(x > 0, x, s)), x, scalar)


def test_scalars_on_the_cpu_that_change(device: torch.device) -> None:
    compiled = treadle.compile(lambda x, s: x * s + s)
    x = torch.randn(7, device=device)
    for value in (1.0, -2.0, 0.5):
        torch.testing.assert_close(compiled(x, torch.tensor(value)), x * value + value)


def test_many_rows_and_long_rows(device: torch.device, check) -> None:
    check(
        lambda x: torch.softmax(x, -1) + x.sum(-1, keepdim=True),
        torch.randn(70000, 5, device=device),
        rtol=1e-4,
        atol=1e-4,
    )
    treadle.reset()
    check(lambda x: torch.softmax(x, -1), torch.randn(3, 200_001, device=device))
    treadle.reset()
    check(lambda x: x.sum(0), torch.randn(200_001, 3, device=device), rtol=1e-3, atol=1e-2)
    treadle.reset()
    check(lambda x: x.double().sum(), torch.randn(3_000_001, device=device))


@pytest.mark.only_cuda
def test_more_than_two_to_the_31_elements(device: torch.device) -> None:
    if torch.cuda.mem_get_info(device)[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of free GPU memory")
    x = torch.ones(2**31 + 1030, dtype=torch.int8, device=device)
    x[-1] = 7
    out = treadle.compile(lambda x: x * 2 + 1)(x)
    assert out[-1].item() == 15 and out[0].item() == 3 and out[2**31].item() == 3
    assert treadle.compile(lambda x: x.long().sum())(x).item() == x.numel() + 6


def test_conv_channels_last(device: torch.device, check) -> None:
    x = torch.randn(2, 16, 20, 20, device=device).to(memory_format=torch.channels_last)
    w = torch.randn(8, 16, 3, 3, device=device).to(memory_format=torch.channels_last)
    check(lambda x, w: F.relu(F.conv2d(x, w)) + 1, x, w, rtol=1e-3, atol=1e-3)


@pytest.mark.only_cuda
def test_tf32_as_the_switch_says(device: torch.device, check) -> None:
    x, w = torch.randn(128, 256, device=device), torch.randn(256, 64, device=device)
    exact = x.double() @ w.double()
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        treadle.reset()
        compiled = treadle.compile(lambda x, w: F.relu(x @ w))
        own = (F.relu(x @ w).double() - F.relu(exact)).abs().max().item()
        assert (compiled(x, w).double() - F.relu(exact)).abs().max().item() <= 4 * own + 1e-5
