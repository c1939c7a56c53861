"""Rows in chunks of 16 lanes: when they are chosen, which rows get a place for their last chunk, and the results."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.cpp import build
from treadle_codegen.targets.cpp.chunks import rows_with_tails, why_not_chunks
from treadle_codegen.targets.cpp.processor import processor_line


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def kernel_of(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Kernel:
    (node,) = fuse(lower_graph(capture(fn, inputs)))
    assert isinstance(node.item, Kernel)
    return node.item


def reason(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor, parallel: bool = False) -> str | None:
    kernel = kernel_of(fn, *inputs)
    return why_not_chunks(kernel, kernel.sections[-1], parallel=parallel)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


REASONS = {
    "all of it": (softmax, torch.randn(8, 9), "all of it is left over"),
    "a long row of exponentials": (softmax, torch.randn(3, 1021), "a long row of expensive elements"),
    "elements alone": (lambda x: x[:, 1:].exp() + 1, torch.randn(8, 18), None),
    "doubles": (softmax, torch.randn(8, 49).double(), "elements of other widths"),
    "strided": (lambda x: x.t().sum(1), torch.randn(49, 8), "elements that lie apart"),
    "positions": (lambda x: x.argmax(1), torch.randn(8, 49), "elements of other widths"),
    "no outer loop": (lambda x: x.sum(), torch.randn(49), "a single long loop"),
}


@pytest.mark.parametrize("name", REASONS)
def test_when_the_compilers_loop_is_as_good(name: str) -> None:
    fn, x, wanted = REASONS[name]
    found = reason(fn, x)
    assert found is not None and (wanted is None or wanted in found)


@pytest.mark.parametrize("columns", [17, 48, 49, 127, 200])
def test_rows_are_walked_in_chunks(columns: int) -> None:
    assert reason(softmax, torch.randn(8, columns)) is None
    assert reason(softmax, torch.randn(8, columns), parallel=True) is not None


def test_rows_that_every_section_walks_have_a_tail() -> None:
    kernel = kernel_of(softmax, torch.randn(8, 49))
    (row,) = (name for name, local in kernel.locals.items() if local.is_row)
    assert rows_with_tails(kernel, parallel=False) == {row}
    even = kernel_of(softmax, torch.randn(8, 48))
    assert rows_with_tails(even, parallel=False) == set()


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": softmax,
    "sum": lambda x: (x * 2 + 1).sum(1),
    "product": lambda x: (x * 0.01 + 1).prod(1),
    "maximum": lambda x: x.amax(1) - x.amin(1),
    "any and all": lambda x: (x > 2).any(1) | (x < 0).all(1),
    "variance": lambda x: x.var(1),
}


INSTRUCTION_SETS = {"x86-64": "sse2", "x86-64-v3": "avx2", "x86-64-v4": "avx512vl"}
"""Of x86-64 processors that differ in the length of their vectors, with a flag that tells them in /proc/cpuinfo."""


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels are compiled for this one."""
    if platform.machine() != "x86_64":
        pytest.skip("another processor's instruction sets")
    flags = [f"-march={request.param}" if flag == "-march=native" else flag for flag in build._FLAGS]
    monkeypatch.setattr(build, "_FLAGS", tuple(flags))
    return request.param


@pytest.mark.parametrize("columns", [17, 48, 1000])
@pytest.mark.parametrize("name", CASES)
def test_each_instruction_set_gives_the_same(name: str, columns: int, instruction_set: str, cache: Path) -> None:
    if f" {INSTRUCTION_SETS[instruction_set]}" not in (processor_line("flags") or ""):
        pytest.skip("this processor lacks it")
    x = torch.randn(5, columns)
    x[1, -1] = x[2, 0] = float("nan")
    x[3] = float("-inf")
    (y,) = compile_graph(capture(CASES[name], [x]), [x], options=CodegenOptions(cache_dir=cache, threads=1))(x)
    torch.testing.assert_close(y, CASES[name](x), equal_nan=True)


SCALAR = re.compile(r"^\s+(v?u?comiss|v?cmp\w*ss|v?(?:max|min|add|mul)ss)\b", re.MULTILINE)


@pytest.mark.parametrize("columns", [48, 1000])
@pytest.mark.parametrize("name", ["maximum", "largest absolute value"])
def test_maxima_are_compared_in_vectors(name: str, columns: int, instruction_set: str, tmp_path: Path) -> None:
    """g++ compares vectors that are longer than the processor's element by element, 30 times as slowly."""
    if not build.find_compiler().command[0].endswith("g++"):
        pytest.skip("the names of g++'s instructions")
    fn = {"maximum": lambda x: x.amax(1), "largest absolute value": lambda x: x.abs().amax(1)}[name]
    x = torch.randn(5, columns)
    source = compile_graph(capture(fn, [x]), [x], options=CodegenOptions(cache_dir=tmp_path, threads=1)).source
    text = tmp_path / "kernels.cpp"
    text.write_text(source)
    command = [*build.find_compiler().command, *build.compile_flags(1, source), "-S", "-o", "-", str(text)]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert SCALAR.findall(assembly) == []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns", [16, 17, 31, 33, 127])
def test_chunks_agree_with_eager(name: str, columns: int, cache: Path) -> None:
    x = torch.randn(5, columns)
    options = CodegenOptions(cache_dir=cache, threads=1)
    (y,) = compile_graph(capture(CASES[name], [x]), [x], options=options)(x)
    torch.testing.assert_close(y, CASES[name](x))


def test_the_last_chunk_is_masked(cache: Path) -> None:
    """NaN behind the end of a row, in the next one, does not leak into it; NaN in the row does."""
    x = torch.zeros(3, 17)
    x[1] = float("nan")
    options = CodegenOptions(cache_dir=cache, threads=1)
    (y,) = compile_graph(capture(lambda x: x.exp().sum(1), [x]), [x], options=options)(x)
    assert y[0] == y[2] == 17 and y[1].isnan()
