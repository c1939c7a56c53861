"""The prelude's float32 functions against torch's float64 ones, over dense samples and the special values."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture

from treadle_codegen.options import CodegenOptions
from treadle_codegen.pipeline import compile_graph
from treadle_codegen.targets.cpp.build import build_library
from treadle_codegen.targets.cpp.renderer import PRELUDE

# function -> (domain sampled, largest error in units of the last place)
FUNCTIONS = {
    "exp": ((-104.0, 89.0), 2.0),
    "expm1": ((-20.0, 89.0), 3.0),
    "log": ((1e-38, 3e38), 2.0),
    "log1p": ((-0.999, 1e6), 3.0),
    "tanh": ((-12.0, 12.0), 3.0),
    "sigmoid": ((-80.0, 80.0), 3.0),
    "erf": ((-5.0, 5.0), 3.0),
    "sin": ((-1e4, 1e4), 2.0),
    "rsqrt": ((1e-30, 1e30), 2.0),
    "one_plus_erf": ((0.0, 5.0), 2.0),
}
REFERENCE = {"one_plus_erf": lambda x: 1 + torch.erf(x)}  # of functions that torch does not have
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e-40,
    -1e-40,
    3e38,
    -3e38,
    88.7,
    89.0,
    -103.9,
    -200.0,
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    loops = "".join(
        f'extern "C" void run_{name}(const float* x, float* y, i64 n) {{\n#pragma omp simd\n'
        f"  for (i64 i = 0; i < n; ++i) y[i] = f_{name}(x[i]);\n}}\n"
        for name in FUNCTIONS
    )
    options = CodegenOptions(cache_dir=tmp_path_factory.mktemp("cache"))
    return build_library(PRELUDE.read_text() + loops, options)[0]


def _run(library: ctypes.CDLL, name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    library[f"run_{name}"](ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_longlong(x.numel()))
    return y


def reference(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    return REFERENCE.get(name) or getattr(torch, name)


def _samples(low: float, high: float) -> torch.Tensor:
    torch.manual_seed(0)
    even = torch.linspace(low, high, 200_001, dtype=torch.float64)
    near_zero = torch.logspace(-30, 0, 20_001, dtype=torch.float64)
    both = torch.cat([even, near_zero, -near_zero]).to(torch.float32)
    return both[(both >= low) & (both <= high)].contiguous()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_a_few_units_in_the_last_place(library: ctypes.CDLL, name: str) -> None:
    (low, high), limit = FUNCTIONS[name]
    x = _samples(low, high)
    want = reference(name)(x.double())
    got = _run(library, name, x).double()
    nearest = want.float()
    finite = nearest.isfinite()
    assert torch.equal(got[~finite].float(), nearest[~finite])
    ulp = torch.nextafter(nearest.abs(), torch.tensor(float("inf"))).double() - nearest.abs().double()
    error = ((got - want).abs() / ulp)[finite]
    worst = int(error.argmax())
    assert error[worst] <= limit, f"{name}({x[finite][worst].item()!r}) is off by {error[worst].item():.2f} ulp"


def test_one_plus_erf_is_off_by_less_than_the_last_place_of_erf(library: ctypes.CDLL) -> None:
    x = _samples(-7.0, 7.0)
    torch.testing.assert_close(_run(library, "one_plus_erf", x).double(), 1 + x.double().erf(), rtol=0, atol=1.6e-7)
    assert (_run(library, "one_plus_erf", torch.tensor([-4.0, -30.0, -3e38])) == 0).all()


@pytest.mark.parametrize("call", [F.gelu, lambda x: torch.ops.aten.gelu_backward(x * 0 + 1, x)])
def test_gelu_takes_one_plus_erf(call: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    x = torch.cat([torch.linspace(-9, 9, 1001), torch.tensor([0.0, -0.0, float("nan"), 1e-40, -1e30])])
    graph = compile_graph(capture(call, [x]), [x], options=CodegenOptions(cache_dir=tmp_path, threads=1))
    torch.testing.assert_close(graph(x)[0], call(x), rtol=2e-6, atol=1e-6, equal_nan=True)


def test_a_sum_of_1_and_erf_is_one_operation(tmp_path: Path) -> None:
    x = torch.linspace(-5, 5, 1001)
    graph = compile_graph(capture(lambda x: x * (1 + torch.erf(x)), [x]), [x])
    assert "= f_one_plus_erf(" in graph.kernel_source
    torch.testing.assert_close(graph(x)[0], x * (1 + torch.erf(x)), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_as_in_eager(library: ctypes.CDLL, name: str) -> None:
    x = torch.tensor(SPECIAL)
    torch.testing.assert_close(_run(library, name, x), reference(name)(x), rtol=1e-5, atol=1e-44, equal_nan=True)


def test_products_are_rounded_before_they_are_subtracted(tmp_path: Path) -> None:
    """exp((x - max) * scale) with a huge scale: contracted to an fma, x * scale minus the largest x * scale is not 0."""
    torch.manual_seed(0)
    x = torch.randn(7, 33)
    for scale in (1e30, 100.0, 0.3):
        graph = compile_graph(
            capture(lambda x, s=scale: F.softmax(x * s, -1), [x]),
            [x],
            options=CodegenOptions(cache_dir=tmp_path, threads=1),
        )
        torch.testing.assert_close(graph(x)[0], F.softmax(x * scale, -1))


def test_no_call_of_a_kernel_is_dropped() -> None:
    """g++ 12 took this kernel for a function without effect."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        new = y.reshape(-1)[107:111].view(2, 1, 2) * 0.5 + x[1:3, 3:4, 4:6]
        return torch.ops.aten.copy(x[0::2, 1:2, 1:3], x[0::2, 1:2, 1:3] * new)

    x, y = torch.randn(6, 4, 5).permute(1, 2, 0), torch.randn(4, 5, 6)
    (actual,) = compile_graph(capture(f, (x, y)), (x, y))(x, y)
    torch.testing.assert_close(actual, f(x, y))


def _half_loops(tmp_path: Path) -> ctypes.CDLL:
    loops = "".join(
        f'extern "C" void {name}(const {source}* x, {target}* y, i64 n) {{\n#pragma omp simd\n'
        f"  for (i64 i = 0; i < n; ++i) y[i] = {name}_f16(x[i]);\n}}\n"
        for name, source, target in (("from", "u16", "float"), ("to", "float", "u16"))
    )
    return build_library(PRELUDE.read_text() + loops, CodegenOptions(cache_dir=tmp_path))[0]


def test_float16_becomes_float_exactly(tmp_path: Path) -> None:
    halves = torch.arange(1 << 16).to(torch.int16).view(torch.float16)
    found = torch.empty(1 << 16)
    _half_loops(tmp_path)["from"](
        ctypes.c_void_p(halves.data_ptr()), ctypes.c_void_p(found.data_ptr()), ctypes.c_longlong(1 << 16)
    )
    torch.testing.assert_close(found, halves.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit(), halves.signbit())


def test_float_is_rounded_to_float16_as_in_eager(tmp_path: Path) -> None:
    """All exponents and signs, with mantissas around every boundary of rounding, and infinity and NaN."""
    low = torch.tensor(
        [0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x2FFF, 0x3000, 0x3001, 0x7FEFFF, 0x7FF000, 0x7FFFFF]
    )
    middle = (torch.arange(64) << 17)[:, None] + low
    bits = (torch.arange(512)[:, None] << 23) + (middle.flatten() & 0x7FFFFF)
    x = bits.flatten().to(torch.int32).view(torch.float32)
    found = torch.empty_like(x, dtype=torch.float16)
    _half_loops(tmp_path)["to"](
        ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(found.data_ptr()), ctypes.c_longlong(x.numel())
    )
    expected = x.half()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit(), expected.signbit())


BOUNDS = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1.0, 0.0),
    "clamp_min": lambda x: x.clamp_min(-0.0),
    "clamp_max": lambda x: x.clamp_max(0.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_keep_nan_and_the_sign_of_zero(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL * 7 + [0.5], dtype=dtype)  # several vectors, and a rest
    (found,) = compile_graph(capture(BOUNDS[name], [x]), [x])(x)
    expected = BOUNDS[name](x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    zeros = expected == 0
    assert torch.equal(found.signbit()[zeros], expected.signbit()[zeros])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=lambda t: str(t)[6:])
def test_the_larger_of_any_two_values(dtype: torch.dtype) -> None:
    x, y = (t.reshape(-1) for t in torch.meshgrid([torch.tensor(SPECIAL, dtype=dtype)] * 2, indexing="ij"))

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.maximum(x, y), torch.minimum(x, y)

    found = compile_graph(capture(both, (x, y)), (x, y))(x, y)
    torch.testing.assert_close(found, [*both(x, y)], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=lambda t: str(t)[6:]
)
@pytest.mark.parametrize("divisor", [1, 2, 7, 100, -1, -7])
def test_integers_are_divided_downwards(dtype: torch.dtype, divisor: int) -> None:
    if divisor < 0 and dtype == torch.uint8:
        pytest.skip("uint8 holds no negative divisor")
    info = torch.iinfo(dtype)
    lowest = info.min + (divisor == -1)  # the quotient of the other one does not fit
    x = torch.cat([torch.arange(max(lowest, -300), min(info.max, 300)), torch.tensor([lowest, info.max])]).to(dtype)
    y = torch.full_like(x, divisor)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([x // divisor, x // y, x % divisor, x % y])

    assert torch.equal(compile_graph(capture(function, (x, y)), (x, y))(x, y)[0], function(x, y))
