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


def reasons(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor, parallel: bool = False) -> list[str | None]:
    """For each section of the kernel why it is not walked in chunks."""
    kernel = kernel_of(fn, *inputs)
    return [why_not_chunks(kernel, section, parallel=parallel) for section in kernel.sections]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


REASONS = {
    "a part of a chunk": (lambda x: x.sum(1), torch.randn(8, 7), "most of a chunk would be masked"),
    "a long row of exponentials": (lambda x: x.exp().sum(1), torch.randn(3, 1021), "a long row of expensive elements"),
    "elements alone": (lambda x: x[:, 1:].exp() + 1, torch.randn(8, 18), None),
    "bytes": (lambda x: x.amax(1), torch.ones(8, 49, dtype=torch.int8), "elements of one byte"),
    "strided": (lambda x: x.t().sum(1), torch.randn(49, 8), "elements that lie apart"),
    "positions": (lambda x: x.argmax(1), torch.randn(8, 49), "positions are reduced"),
    "several axes": (lambda x: x[:, 1:, 1:].sum((1, 2)), torch.randn(8, 18, 18), "rows of a larger loop nest"),
}


@pytest.mark.parametrize("name", REASONS)
def test_when_the_compilers_loop_is_as_good(name: str) -> None:
    fn, x, wanted = REASONS[name]
    (found,) = reasons(fn, x)
    assert found is not None and (wanted is None or wanted in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("columns", [17, 48, 49, 127, 200])
def test_rows_are_added_up_in_chunks(columns: int, dtype: torch.dtype) -> None:
    x = torch.ones(8, columns, dtype=dtype)
    assert reasons(lambda x: x.amax(1), x) == [None]


def test_a_single_loop_is_walked_in_chunks_unless_threads_share_it() -> None:
    x = torch.randn(4999)
    assert reasons(lambda x: x.sum(), x) == [None]
    (shared,) = reasons(lambda x: x.sum(), x, parallel=True)
    assert shared is not None and "threads share" in shared


def test_only_sections_that_add_up_are_walked_in_chunks() -> None:
    *adds_up, divides = reasons(softmax, torch.randn(8, 49))
    assert not any(adds_up) and divides is not None and "elements alone" in divides


def test_rows_that_every_section_walks_have_a_tail() -> None:
    def entropy(x: torch.Tensor) -> torch.Tensor:
        return -(x.softmax(1) * x.log_softmax(1)).sum(1)

    for dtype, lanes in ((torch.float32, 16), (torch.float64, 8)):
        found = rows_with_tails(kernel_of(entropy, torch.randn(8, 49, dtype=dtype)), parallel=False)
        assert found and set(found.values()) == {lanes}
    assert rows_with_tails(kernel_of(entropy, torch.randn(8, 48)), parallel=False) == {}
    assert (
        rows_with_tails(kernel_of(softmax, torch.randn(8, 49)), parallel=False) == {}
    )  # read by a loop of the compiler


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": softmax,
    "sum": lambda x: (x * 2 + 1).sum(1),
    "product": lambda x: (x * 0.01 + 1).prod(1),
    "maximum": lambda x: x.amax(1) - x.amin(1),
    "any and all": lambda x: (x > 2).any(1) | (x < 0).all(1),
    "variance": lambda x: x.var(1),
    "entropy": lambda x: -(x.softmax(1) * x.log_softmax(1)).sum(1),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns", [9, 16, 17, 31, 33, 127])
def test_chunks_agree_with_eager(name: str, columns: int, dtype: torch.dtype, cache: Path) -> None:
    if name == "product" and dtype.itemsize == 2:
        pytest.skip("a product of a hundred rounded numbers")
    x = torch.randn(5, columns).to(dtype)
    options = CodegenOptions(cache_dir=cache, threads=1)
    (y,) = compile_graph(capture(CASES[name], [x]), [x], options=options)(x)
    tolerance = {} if dtype.itemsize > 2 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(y, CASES[name](x), **tolerance)


INTEGERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: (x * 2 + 1).sum(1, dtype=x.dtype),
    "maximum": lambda x: x.amax(1) - x.amin(1),
    "any": lambda x: (x > 2).any(1),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("columns", [9, 17, 33, 127])
def test_chunks_of_integers_agree_with_eager(name: str, columns: int, dtype: torch.dtype, cache: Path) -> None:
    x = torch.randint(-9, 9, (5, columns)).to(dtype)
    options = CodegenOptions(cache_dir=cache, threads=1)
    (y,) = compile_graph(capture(INTEGERS[name], [x]), [x], options=options)(x)
    torch.testing.assert_close(y, INTEGERS[name](x), rtol=0, atol=0)


def test_the_last_chunk_is_masked(cache: Path) -> None:
    """NaN behind the end of a row, in the next one, does not leak into it; NaN in the row does."""
    x = torch.zeros(3, 17)
    x[1] = float("nan")
    options = CodegenOptions(cache_dir=cache, threads=1)
    (y,) = compile_graph(capture(lambda x: x.exp().sum(1), [x]), [x], options=options)(x)
    assert y[0] == y[2] == 17 and y[1].isnan()
