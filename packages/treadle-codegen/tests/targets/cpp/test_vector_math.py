"""Elementary functions of SLEEF: values as eager's, special values included, whatever a loop's length and dtype."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.options import CodegenOptions
from treadle_codegen.targets.cpp import vector_math
from treadle_codegen.targets.cpp.build import build_library, compile_flags, find_compiler

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    float("inf"),
    float("-inf"),
    float("nan"),
    1e-310,
    -1e-310,
    1e300,
    710.0,
    -745.0,
    1e5,
]
ONE = [op for op, (arguments, _) in vector_math.FUNCTIONS.items() if arguments == 1]
TWO = [op for op in vector_math.FUNCTIONS if op not in ONE]
OTHERS = ["sinh", "cosh", "asinh", "acosh", "sigmoid"]  # by the C library, or from exp


def arguments(dtype: torch.dtype, n: int = 203) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.cat(
        [torch.randn(n - len(SPECIAL), dtype=torch.float64) * 2, torch.tensor(SPECIAL, dtype=torch.float64)]
    ).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", [*ONE, *OTHERS])
def test_functions_of_one_argument(name: str, dtype: torch.dtype) -> None:
    x, function = arguments(dtype), getattr(torch, name)
    (found,) = compile_graph(capture(function, (x,)), (x,))(x)
    expected = function(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(found.signbit()[expected == 0], expected.signbit()[expected == 0])


@pytest.mark.parametrize("name", ["sinh", "cosh"])
def test_hyperbolic_functions_of_floats(name: str) -> None:
    """Against doubles: eager's own overflow between 88.7 and 89.4."""
    x = torch.cat([torch.linspace(-89.4, 89.4, 4001), torch.tensor([1e-38, 1e-20, 1e-4, 89.415, 89.5, 0.0, -0.0])])
    (found,) = compile_graph(capture(getattr(torch, name), (x,)), (x,))(x)
    expected = getattr(torch, name)(x.double()).float()
    torch.testing.assert_close(found, expected, rtol=6e-7, atol=0.0)
    assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_arguments(name: str, dtype: torch.dtype) -> None:
    x = arguments(dtype)
    y, function = x.flip(0).contiguous(), getattr(torch, name)
    (found,) = compile_graph(capture(function, (x, y)), (x, y))(x, y)
    torch.testing.assert_close(found, function(x, y), equal_nan=True)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 100])
def test_a_value_does_not_depend_on_its_place(n: int) -> None:
    x = torch.full((n,), 0.7371, dtype=torch.float64)
    (found,) = compile_graph(capture(lambda x: torch.exp(x) + torch.tanh(x), (x,)), (x,))(x)
    assert found.unique().numel() == 1


def test_where_both_sides_are_computed() -> None:
    x = arguments(torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, torch.log(x), torch.expm1(x)).sum(0) + torch.where(
            x > 0, torch.log(x), torch.expm1(x)
        )

    (found,) = compile_graph(capture(function, (x,)), (x,))(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)


def test_the_c_library_serves_where_torch_has_no_such_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_math, "instruction_sets", lambda: ())
    x = arguments(torch.float64)
    compiled = compile_graph(capture(torch.cosh, (x,)), (x,))
    assert "sleef" not in compiled.kernel_source
    torch.testing.assert_close(compiled(x)[0], torch.cosh(x), equal_nan=True)


@pytest.mark.skipif(not vector_math.instruction_sets(), reason="the processor has no AVX2")
def test_a_library_that_names_an_unknown_function_is_refused() -> None:
    source = 'extern "C" { char treadle_sleef_names[] = "Sleef_nothing"; void* treadle_sleef[1]; }\n'
    with pytest.raises(Exception, match="Sleef_nothing"):
        build_library(source, CodegenOptions())


@pytest.mark.skipif(not vector_math.instruction_sets(), reason="the processor has no AVX2")
def test_vector_loops_call_the_widest_form() -> None:
    x = torch.randn(64, dtype=torch.float64)
    compiled = compile_graph(capture(torch.sin, (x,)), (x,))
    assert "sleef_sin_d(" in compiled.kernel_source
    library, _ = build_library(compiled.source, CodegenOptions())
    assert all((ctypes.c_void_p * len(vector_math.instruction_sets())).in_dll(library, "treadle_sleef"))


@pytest.mark.skipif(not vector_math.instruction_sets(), reason="the processor has no AVX2")
def test_a_call_whose_result_a_condition_selects_has_its_vector_form(tmp_path: Path) -> None:
    x = torch.rand(64) + 0.1
    compiled = compile_graph(capture(lambda x: torch.where(x > 0.3, x.sin(), x / 3), (x,)), (x,))
    text = tmp_path / "kernels.cpp"
    text.write_text(compiled.source)
    command = [*find_compiler().command, *compile_flags(1, compiled.source), "-S", "-o", "-", str(text)]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = assembly.replace("jmp", "call").splitlines()
    called = {line.split()[1] for line in lines if line.split()[:1] == ["call"] and "sleef" in line}
    assert called
    assert all(name.startswith("_ZGV") for name in called)
