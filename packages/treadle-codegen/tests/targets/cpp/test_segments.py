"""Calls of an unrolled loop's steps are a loop over a table of what they are given."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aten_capture import capture
from torch import Tensor

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.ir.loops import Buffer, BufferKind
from treadle_codegen.targets.cpp import segments
from treadle_codegen.targets.cpp.segments import segment_text
from treadle_codegen.targets.renderer import RenderedKernel, Segment

NAMES = [f"b{k}" for k in range(200)]
BUFFERS = {name: Buffer(name, torch.float32, (8,), (1,), BufferKind.TEMP) for name in NAMES}
SLOTS = {name: k + 1 for k, name in enumerate(NAMES)}


def _kernel(function: str, k: int) -> RenderedKernel:
    return RenderedKernel(
        *(function, "", (NAMES[k], NAMES[k + 1]), (), function == "checks", f"{function}_{k}"),
        bases=(0, 8 * k) if function == "slices" else (),
        literals=((k / 4, torch.float32), (k, torch.int64)) if function == "takes" else (),
    )


def _calls(text: str) -> list[str]:
    """The calls that a segment does, in order, with the numbers of the tables in their places."""
    done = []
    for loop in (
        re.finditer(r"for \(i64 n = 0; n < (\d+).*\n  (.*)\n((?:    .*\n)*)  }", text) if "for (" in text else []
    ):
        tables = {name: values.split(", ") for name, values in re.findall(r"(\w+)\[\] = {(.*)};", text)}
        heads = {
            a: (name, int(w)) for a, name, w in re.findall(r"(\w)= (\w+) \+ n \* (\d+)", loop[2].replace(" = ", "= "))
        }
        for n in range(int(loop[1])):
            for line in loop[3].splitlines():
                done.append(
                    re.sub(
                        r"\b([td])\[(\d+)\]",
                        lambda m, n=n: tables[heads[m[1]][0]][n * heads[m[1]][1] + int(m[2])],
                        line,
                    )
                )
    return [line.split("  //")[0].strip().replace(" + 0,", ",") for line in done]


@pytest.mark.parametrize("step", [["plain"], ["plain", "takes", "slices", "checks"], ["takes", "takes", "plain"]])
def test_a_loop_does_the_same_calls(step: list[str]) -> None:
    kernels = tuple([_kernel(step[k % len(step)], k) for k in range(40 * len(step))])
    apart = [segment_text(Segment("s", (kernel,)), SLOTS, BUFFERS).splitlines()[1] for kernel in kernels]
    text = segment_text(Segment("s", kernels), SLOTS, BUFFERS)
    assert text.count("for (") == 1
    assert len(text.splitlines()) < 20
    assert _calls(text) == [line.split("  //")[0].strip() for line in apart]


def test_what_does_not_repeat_stays_apart() -> None:
    kernels = [_kernel("takes", 0), *[_kernel("plain", k) for k in range(1, 41)], _kernel("checks", 41)]
    lines = segment_text(Segment("s", tuple(kernels)), SLOTS, BUFFERS).splitlines()
    assert [line.split("(")[0].strip() for line in (lines[1], lines[-2])] == ["takes", "checks"]
    assert "for (" not in segment_text(Segment("s", tuple(kernels[:20])), SLOTS, BUFFERS)


def _steps(x: Tensor) -> Tensor:
    for t in range(60):
        x = (x.gather(1, (x.abs() * 3).long() % x.shape[1]) * (0.9 + t / 1000) + (t + 2)).sin() * (30 + t)
    return x


def _integers(x: Tensor) -> Tensor:
    y = (x * 10).long()
    found = []
    for t in range(60):
        y = y.gather(1, (y.abs() + t + 2) % y.shape[1]) * (t + 3) + (y & 255)
        found.append(y.cumsum(1))
    return torch.stack(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("program", [_steps, _integers])
def test_loops_over_calls_compute_the_same_bits(
    program: Callable[[Tensor], Tensor], dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 17).to(dtype)
    results, sources = [], []
    for fewest in (segments._FEWEST_CALLS, 10**9):
        monkeypatch.setattr(segments, "_FEWEST_CALLS", fewest)
        options = CodegenOptions(cache_dir=tmp_path / str(fewest), threads=1)
        compiled = compile_graph(capture(program, [x]), [x], options=options)
        results += compiled(x)
        sources.append(compiled.source)
    assert ["static const i64 t" in source for source in sources] == [True, False]
    assert torch.equal(*results)
