"""Tilings of C++ kernels: whichever is chosen, the values are the same; what is chosen is measured once and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.costs import Costs
from treadle_codegen.host.host_of_plan import host_of
from treadle_codegen.host.plan import make_plan
from treadle_codegen.lower import lower_graph
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.cpp.clock import CpuClock
from treadle_codegen.targets.cpp.renderer import CppRenderer
from treadle_codegen.targets.cpp.target import CPP
from treadle_codegen.targets.cpp.tiling import DEFAULT, CppTiling

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "rows": (lambda x: torch.softmax(x, -1), (torch.randn(5, 333),)),
    "columns": (lambda x: x.mean(0), (torch.randn(77, 67),)),
    "transposed": (lambda x, y: x.t() + y, (torch.randn(517, 395), torch.randn(395, 517))),
    "long sum": (lambda x: (x * 2).sum(), (torch.randn(20011),)),
    "sum of planes": (lambda x: x.sum((0, 2)), (torch.randn(5, 3, 4000),)),
    "sums of rows": (lambda x: x.sum(1), (torch.randn(7, 1031),)),
    "extrema": (lambda x: (x.amax(1), x.amin(1)), (torch.randn(7, 2047),)),
    "integers": (lambda x: x.sum(1), (torch.randint(-9, 9, (7, 515)),)),
    "all": (lambda x: (x > -100).all(1), (torch.randn(3, 1030),)),
    "float64": (lambda x: torch.exp(x).sum(1), (torch.randn(3, 1030, dtype=torch.float64),)),
    "bfloat16": (lambda x: torch.tanh(x).sum(1), (torch.randn(3, 1030).bfloat16(),)),
}

# Where numbers are added up, each order of the additions rounds differently: by a few units in the last place of the largest partial sum.
TOLERANCES = {
    "bfloat16": {"rtol": 0.02, "atol": 0.1},
    "long sum": {"rtol": 1e-5, "atol": 1e-3},
    "sums of rows": {"rtol": 1e-5, "atol": 1e-4},
    "sum of planes": {"rtol": 1e-5, "atol": 1e-4},
}


def run(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...], tiling: CppTiling) -> list[torch.Tensor]:
    program = lower_graph(capture(function, tensors), tensors)
    renderer = CppRenderer(CodegenOptions(threads=1))
    nodes = fuse(program)
    for node in nodes:
        node.choice = tiling
    plan = make_plan(program, nodes, renderer)
    entries, _ = renderer.load(
        renderer.render_unit(plan.segments, plan.slots, program.buffers), [s.name for s in plan.segments]
    )
    return host_of(plan, CPP, entries).run(*tensors)


def tilings(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> list[CppTiling]:
    program = lower_graph(capture(function, tensors), tensors, Costs())
    renderer, found = CppRenderer(CodegenOptions(threads=1)), [DEFAULT]
    for node in fuse(program):
        if isinstance(node.item, Kernel):
            found += renderer.candidates(node.item, program)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("case", CASES)
def test_every_tiling_gives_the_same_values(case: str) -> None:
    function, tensors = CASES[case]
    expected = function(*[t.double() if t.is_floating_point() else t for t in tensors])
    expected = expected if isinstance(expected, tuple) else (expected,)
    for tiling in tilings(function, tensors):
        for found, wanted in zip(run(function, tensors, tiling), expected, strict=True):
            torch.testing.assert_close(found, wanted.to(found.dtype), **TOLERANCES.get(case, {}))


def test_there_is_something_to_choose() -> None:
    choices = {
        name: {str(t) for t in tilings(*CASES[name])} for name in ("rows", "columns", "transposed", "sum of planes")
    }
    assert "chunks False" in choices["rows"]
    assert "columns False" in choices["columns"]
    assert {"tile 0", "tile 32"} <= choices["transposed"]
    assert {"streams 2", "streams 4"} <= choices["sum of planes"]


@pytest.mark.parametrize("kind", ["amax", "amin", "sum"])
@pytest.mark.parametrize("place", [0, 300, 777, 1030])
def test_nan_in_any_stream_reaches_the_result(kind: str, place: int) -> None:
    x = torch.randn(2, 1031)
    x[1, place] = float("nan")
    (found,) = run(lambda x: getattr(x, kind)(1), (x,), CppTiling(streams=4, chunks=False))
    assert found[1].isnan() and not found[0].isnan()


def tuned(cache: Path, **options: Any) -> Any:
    function, tensors = CASES["transposed"]
    options_ = CodegenOptions(autotune=True, cache_dir=cache, threads=1, **options)
    compiled = compile_graph(capture(function, tensors), tensors, options=options_)
    torch.testing.assert_close(compiled(*tensors)[0], function(*tensors))
    return compiled


def test_choices_are_measured_once(tmp_path: Path) -> None:
    (first,) = tuned(tmp_path).trials
    (second,) = tuned(tmp_path).trials
    assert not first.cached and second.cached
    assert first.chosen == second.chosen and "default" in first.seconds and len(first.seconds) > 2


def test_an_equal_variant_does_not_replace_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuClock, "seconds", lambda self, run, label: 1.0 if label == "default" else 0.99)
    (trial,) = tuned(tmp_path).trials
    assert trial.chosen == "default"


def test_memory_that_cannot_be_had_while_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(clock: CpuClock, run: Callable[[], Any], label: str) -> float:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."
        )

    monkeypatch.setattr(CpuClock, "seconds", fails)
    (trial,) = tuned(tmp_path).trials
    assert trial.chosen == "default" and set(trial.failures.values()) == {"out of memory"}


def test_inputs_that_do_not_fit_memory_while_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle_codegen.tune import trials

    def fails(*_: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(trials, "random_inputs", fails)
    (trial,) = tuned(tmp_path).trials
    assert trial.chosen == "default" and set(trial.failures.values()) == {"out of memory"}
