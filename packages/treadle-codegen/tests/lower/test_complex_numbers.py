"""Complex arithmetic in loops against eager: every layout, infinities and NaNs, random programs, the reference interpreter."""

from __future__ import annotations

import cmath
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture
from dynamic_cases import compile_dynamic

from treadle_codegen import compile_graph
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Extern
from treadle_codegen.ir.ops import BUFFER_DTYPES, COMPLEX_PARTS
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.lower import lower_graph

C64, C128 = torch.complex64, torch.complex128
DTYPES = BUFFER_DTYPES | COMPLEX_PARTS.keys()


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "product": (lambda x, y: x * y, 2),
    "product with the conjugate": (lambda x, y: x * y.conj(), 2),
    "product with a number": (lambda x: x * 2.5 + x * 2j - x * (1 - 3j), 1),
    "product with reals": (lambda x, y: x * y.real * y.imag, 2),
    "sum, difference": (lambda x, y: (x + y, x - y, x + 1, 1j - y), 2),
    "negative": (lambda x: -x, 1),
    "absolute value": (lambda x: x.abs(), 1),
    "angle": (lambda x: x.angle(), 1),
    "parts": (lambda x: (x.real + 1, x.imag * 2), 1),
    "squares of the parts": (lambda x: torch.view_as_real(x).square().sum(-1), 1),
    "from parts": (lambda x, y: torch.complex(x.real, y.imag) * x, 2),
    "polar": (lambda x: torch.polar(x.abs(), x.angle()) + 1, 1),
    "seen as complex": (lambda x, y: torch.view_as_complex(torch.view_as_real(x) * 2) * y, 2),
    "rearranged": (lambda x, y: (x * y).transpose(0, 1).flatten()[3:].abs(), 2),
    "turned and widened": (lambda x, y: (x + y)[:1].expand(4, -1).conj().flip(0) * 2, 2),
    "reduced": (lambda x, y: (x * y.conj()).abs().sum(-1), 2),
    "between operators": (lambda x, y: torch.fft.ifft(torch.fft.fft(x) * y).real + 1, 2),
    "matrix products": (lambda x, y: ((x * 2) @ y.mH).abs(), 2),
    "from reals": (lambda x: (x.real * 2).to(x.dtype) * x, 1),
}


def run(function: Callable[..., Any], *args: torch.Tensor) -> tuple[torch.fx.GraphModule, Any]:
    graph = capture(function, args)
    return graph, compile_graph(graph, args)


def compare(function: Callable[..., Any], *args: torch.Tensor) -> None:
    expected = function(*args)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    graph, compiled = run(function, *args)
    program = lower_graph(graph, args, dtypes=DTYPES)
    assert parse_program(format_program(program)).steps == program.steps
    for found in (compiled(*args), interpret(program, args)):
        torch.testing.assert_close(list(found), expected, equal_nan=True)
        # Eager's strides are those of its fake kernels, that of `angle` excepted: it gives contiguous memory for transposed tensors.
        assert [x.stride() for x in found] == [n.meta["val"].stride() for n in graph.graph.output_node().args[0]]


@pytest.mark.parametrize("dtype", [C64, C128], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_eager(case: str, dtype: torch.dtype) -> None:
    function, count = CASES[case]
    compare(function, *[made(dtype, 4, 7) for _ in range(count)])


@pytest.mark.parametrize("case", CASES)
def test_layouts(case: str) -> None:
    function, count = CASES[case]
    layouts = [
        made(C64, 7, 4).t(), made(C64, 8, 9)[::2, 1:8], made(C64, 1, 7).expand(4, 7), made(C64, 30)[1:29].view(4, 7),
        made(torch.float32, 4, 7, 5)[..., 1:3].contiguous().view(-1)[: 4 * 14].view(4, 7, 2).view(C64).squeeze(-1),
    ]  # fmt: skip
    for k in range(len(layouts)):
        compare(function, *[layouts[(k + j) % len(layouts)] for j in range(count)])


@pytest.mark.parametrize("shape", [(0, 7), (4, 0), (1, 1), (33, 65)], ids=str)
def test_shapes(shape: tuple[int, int]) -> None:
    compare(lambda x, y: ((x * y).abs(), x - y.conj(), torch.view_as_real(x) + 1), made(C64, *shape), made(C64, *shape))


def test_infinities_and_nans_are_eager_s() -> None:
    parts = [0.0, -0.0, 1.0, -2.0, math.inf, -math.inf, math.nan]
    values = torch.tensor([complex(a, b) for a in parts for b in parts])
    x, y = values[:, None].expand(-1, len(values)).contiguous(), values.expand(len(values), -1).contiguous()
    functions: list[Callable[..., Any]] = [
        lambda x, y: x * y, lambda x, y: x + y, lambda x, y: x - y.conj(), lambda x, y: x * y.real,
        lambda x, y: (x * 2.0, x * 2j), lambda x, y: (x.abs(), y.angle()), lambda x, y: (-x, x.conj().resolve_conj()),
    ]  # fmt: skip
    for function in functions:
        expected = function(x, y)
        found = run(function, x, y)[1](x, y)
        for a, b in zip(expected if isinstance(expected, tuple) else [expected], found, strict=True):
            a, b = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (a, b))
            torch.testing.assert_close(b, a, equal_nan=True)
            same = torch.signbit(a) == torch.signbit(b)
            assert bool((same | a.isnan()).all())


@pytest.mark.parametrize("dtype", [C64, C128], ids=str)
def test_products_and_sums_are_eager_s_to_the_bit(dtype: torch.dtype) -> None:
    """g++ 12 contracts a product next to a sum to a fused operation where it sees ac - bd beside ad + bc.

    Eager does that itself behind the last whole vector.
    """
    x, y = made(dtype, 32, 64), made(dtype, 32, 64)
    function = lambda x, y: (x * y, x * y.conj(), x + y, y - x, x * 1.7, x * y * x + y)  # noqa: E731
    for found, expected in zip(run(function, x, y)[1](x, y), function(x, y), strict=True):
        assert torch.equal(found, expected)


def test_complex_chains_are_kernels_of_their_own() -> None:
    graph = capture(lambda x, y: (x * y + x).abs().square().sum(-1), (made(C64, 4, 7), made(C64, 4, 7)))
    program = lower_graph(graph, (), dtypes=DTYPES)
    assert not any(isinstance(step, Extern) for step in program.steps)
    plain = lower_graph(graph, ())  # a target whose loops know no complex numbers
    assert any(isinstance(step, Extern) for step in plain.steps)


def test_lazy_conjugates_that_were_not_traced_are_resolved() -> None:
    x, y = made(C64, 4, 7), made(C64, 4, 7)
    compiled = run(lambda x, y: x * y, x, y)[1]
    torch.testing.assert_close(compiled(x.conj(), y)[0], x.conj() * y)
    torch.testing.assert_close(compiled(x, made(C64, 4, 7).fill_(2j).conj())[0], x * -2j)
    conjugate = run(lambda x, y: x * y, x.conj(), y)[1]
    torch.testing.assert_close(conjugate(x.conj(), y)[0], x.conj() * y)


def test_sizes_of_the_call(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x)
        return torch.view_as_real(z * z.conj() * cmath.exp(1j)).flatten(1)

    compiled = compile_dynamic(function, lambda n, m: [(n, m, 2)], (5, 3), tmp_path)
    for n, m in ((5, 3), (1, 9), (17, 16)):
        x = torch.randn(n, m, 2)
        torch.testing.assert_close(compiled(x)[0], function(x))


def _random_program(rng: random.Random) -> Callable[..., Any]:
    choices = [rng.randrange(1 << 30) for _ in range(9)]

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, y]
        for c in choices:
            a, b = values[c % len(values)], values[c // 7 % len(values)]
            z: torch.Tensor
            if not a.is_complex():
                z = torch.complex(a, a + 1) if c % 2 else a.sin()
            elif a.dim() < 2 or b.shape != a.shape:
                z = [a.conj(), a * 0.5, a.abs(), -a][c // 11 % 4]
            else:
                z = [
                    lambda a=a, b=b: a * b, lambda a=a, b=b: a + b, lambda a=a, b=b: a - b.conj(), lambda a=a: a.abs(),
                    lambda a=a: a.transpose(0, 1).contiguous().transpose(0, 1), lambda a=a: a.flip(0), lambda a=a: a.real,
                    lambda a=a: torch.view_as_complex(torch.view_as_real(a) + 1), lambda a=a: a * (1 - 1j),
                    lambda a=a: a.imag + a.angle(), lambda a=a: torch.fft.fft(a, norm="ortho"), lambda a=a: a[:, :1].expand_as(a),
                ][c // 11 % 12]()  # fmt: skip
            values.append(z)
        return tuple([v.resolve_conj() * 1 for v in values[2:]][-3:])

    return program


@pytest.mark.parametrize("number", range(30))
def test_random_programs(number: int) -> None:
    program = _random_program(random.Random(number))
    args = made(C128, 3, 5), made(C128, 3, 5)
    expected = program(*args)
    found = run(program, *args)[1](*args)
    torch.testing.assert_close([torch.view_as_real(x) if x.is_complex() else x for x in found],
                               [torch.view_as_real(x) if x.is_complex() else x for x in expected])  # fmt: skip
