"""Around the passes: contracts are checked, dumps are written, exceptions get the pass's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, InternalError, compile_graph, pipeline
from treadle_codegen.errors import CompilerFailed
from treadle_codegen.host import memory_planner
from treadle_codegen.passes import Passes
from treadle_codegen.schedule.memory import ArenaPlan


def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w.t() + 1).relu().softmax(-1) @ w.exp()


def compiled(**options: object) -> pipeline.CompiledGraph:
    inputs = [torch.randn(12, 80), torch.randn(80, 80)]
    gm = capture(fn, inputs, static=(1,))
    return compile_graph(
        gm, inputs, options=CodegenOptions.from_dict({"threads": 1, "frozen_weights": True, **options})
    )


def test_every_pass_is_dumped_by_name(tmp_path: Path) -> None:
    compiled(dump_passes=tmp_path / "dumps")
    compiled(dump_passes=str(tmp_path / "dumps"))
    assert sorted(path.name for path in (tmp_path / "dumps").iterdir()) == ["graph-0", "graph-1"]
    files = {path.name: path.read_text() for path in (tmp_path / "dumps" / "graph-0").iterdir()}
    assert list(sorted(files)) == [
        "00-fold_batch_norm.txt", "01-pack_convolutions.txt", "02-release_biases.txt", "03-pack_linears.txt",
        "04-lay_out_weights.txt", "05-hoist_static.txt", "06-lower.txt", "07-fuse.txt", "08-render.txt", "09-host.txt",
    ]  # fmt: skip
    assert "aten.mm.default" in files["00-fold_batch_norm.txt"] and "prologue" in files["05-hoist_static.txt"]
    assert files["06-lower.txt"].startswith("program inputs") and "section" in files["07-fuse.txt"]
    assert "segment_0" in files["08-render.txt"] and "def run(" in files["09-host.txt"]


def test_nothing_is_dumped_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiled()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("checker", "name"),
    [("verify", "lower"), ("verify_schedule", "fuse"), ("verify_plan", "render")],
)
def test_a_violation_is_an_error_with_the_pass_and_the_dump(
    checker: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, checker, lambda *_: ["a planted fault"])
    with pytest.raises(InternalError, match=f"pass '{name}': a planted fault; graph dumped to .*{name}.txt") as caught:
        compiled(dump_passes=tmp_path)
    assert caught.value.pass_name == name and Path(caught.value.dump_path).exists()
    compiled(verify=False)


def test_a_violation_by_a_rewrite_names_the_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle_codegen.rewrite.pipeline.verify_rewrite", lambda *_: ["a planted fault"])
    with pytest.raises(InternalError, match="pass 'fold_batch_norm'"):
        compiled()


def test_memory_plans_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_planner, "plan_arena", lambda lives, _: ArenaPlan({life.name: 0 for life in lives}, 1))
    graph = compiled()
    with pytest.raises(InternalError, match="pass 'memory plan'.*the arena at 1"):
        graph(torch.randn(12, 12), torch.randn(12, 12))


def test_exceptions_get_the_name_of_their_pass() -> None:
    phase = Passes(CodegenOptions())
    with pytest.raises(InternalError, match="pass 'fuse': ZeroDivisionError"), phase("fuse"):
        1 / 0  # noqa: B018
    with pytest.raises(CompilerFailed), phase("build"):
        raise CompilerFailed("as it is")
    assert phase.seconds.keys() == {"fuse", "build"}
