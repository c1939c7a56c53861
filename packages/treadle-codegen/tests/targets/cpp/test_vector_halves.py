"""Conversions from and to float16 are eager's, bit for bit, in every form that the compiler may call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.options import CodegenOptions

HALVES = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
# What the compiler is told to leave out: the forms of AVX-512, of AVX2, and all of them.
COMPILERS = ("g++", "g++ -mno-avx512f", "g++ -mno-avx2 -mno-f16c -mno-avx512f")


def floats() -> torch.Tensor:
    """Float32 numbers of all signs and exponents, those next to a tie among them, and every kind of NaN."""
    spread = torch.arange(0, 1 << 32, 1009, dtype=torch.int64).to(torch.int32).view(torch.float32)
    finite = HALVES[HALVES.isfinite()].float()
    ties = (
        finite + torch.nextafter(HALVES[HALVES.isfinite()], torch.tensor(torch.inf, dtype=torch.float16)).float()
    ) / 2
    near = [torch.nextafter(ties, torch.full_like(ties, end)) for end in (-torch.inf, torch.inf)]
    return torch.cat([spread, ties, *near])


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


@pytest.fixture(params=COMPILERS)
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CodegenOptions:
    monkeypatch.setenv("CXX", request.param)
    return CodegenOptions(cache_dir=tmp_path, threads=1)


def check(function, *inputs: torch.Tensor, options: CodegenOptions) -> None:
    graph = compile_graph(capture(function, inputs), inputs, options=options)
    for found, expected in zip(graph(*inputs), function(*inputs), strict=True):
        nan = expected.isnan()  # processors make signalling ones quiet, integer arithmetic does not
        assert torch.equal(found.isnan(), nan) and torch.equal(found.signbit(), expected.signbit())
        assert torch.equal(bits(found)[~nan], bits(expected)[~nan])


def test_every_number(options: CodegenOptions) -> None:
    def function(h, x, y):
        return h.float(), h.double(), x.half(), y.half(), -(x.half())

    check(function, HALVES, floats(), floats().double() * (1 + 2**-40), options=options)


@pytest.mark.parametrize("length", (1, 3, 8, 15, 16, 31, 33, 63, 70))
def test_ends_of_rows(length: int, options: CodegenOptions) -> None:
    x = (torch.randn(5, length) * 100).half()
    check(lambda x: (x * 2.5, x.t() + x.t(), x[:, ::2] * 3, x.flip(1) - 1), x, options=options)


@pytest.mark.parametrize("other", (0.0, 0.1, -torch.inf, torch.nan))
def test_elements_that_are_read_under_a_condition(other: float, options: CodegenOptions) -> None:
    x = torch.randn(7, 37).half()

    def function(x):
        padded = torch.constant_pad_nd(x, (3, 2, 1, 0), other)
        return padded * 2, torch.cat([x, x * 2], 1) + 1, torch.where(x > 0, x * 3, x)

    check(function, x, options=options)


@pytest.mark.parametrize("shape", ((64, 33), (3, 1000), (40, 5)))
def test_reductions(shape: tuple[int, int]) -> None:
    x = torch.randn(shape).half()

    def function(x):
        return x.softmax(0), x.softmax(1), x.amax(1), x.amax(0), x.sum(1), x.float().sum(0)

    graph = compile_graph(capture(function, (x,)), (x,))
    for found, expected in zip(graph(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-3)
