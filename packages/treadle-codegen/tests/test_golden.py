"""Golden files: each graph of `golden_graphs` as ATen, loop IR, fused kernels, C++ and host function.

`python -m pytest packages/treadle-codegen/tests/test_golden.py --update-golden` writes the files anew; review the diff.
They are written with the newest supported release of torch and compared with that one only: another one decomposes
operators differently. Nothing in them depends on the processor.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
import torch
from golden_graphs import GRAPHS

from treadle_codegen import CodegenOptions
from treadle_codegen.host.host_of_plan import host_of
from treadle_codegen.host.plan import make_plan
from treadle_codegen.ir.text import format_program
from treadle_codegen.lower.program import lower_graph
from treadle_codegen.rewrite.pipeline import rewrite_graph
from treadle_codegen.rewrite.text import format_graph
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.schedule.text import format_nodes
from treadle_codegen.targets.table import TARGETS

FILES = Path(__file__).parent / "golden"
TORCH = "2.13"


def stages(name: str) -> str:
    """The graph after every stage; nothing is built."""
    gm, inputs = GRAPHS[name]()
    cpp = TARGETS["cpp"]
    renderer = cpp.renderer(CodegenOptions(threads=1))
    parts = {"ATen": format_graph(gm.graph)}
    rewritten, prologue = rewrite_graph(gm, inputs, cpp.rewrites().static, cpp.rewrites().fake_rules)
    if prologue is not None:
        parts["prologue"] = format_graph(prologue[0].graph)
    if rewritten is not gm:
        parts["rewritten"] = format_graph(rewritten.graph)
    program = lower_graph(rewritten, inputs, cpp.costs, cpp.dtypes)
    parts["loops"] = format_program(program)
    nodes = fuse(program, costs=cpp.costs)
    parts["kernels"] = format_nodes(nodes)
    plan = make_plan(program, nodes, renderer)
    source = renderer.render_unit(plan.segments, plan.slots, program.buffers)
    parts["C++"] = source.removeprefix(renderer.prelude).lstrip("\n")
    entries = {segment.name: lambda argument: None for segment in plan.segments}
    parts["host"] = host_of(plan, cpp, entries).source
    return "\n".join(f"==== {title}\n{text.rstrip()}\n" for title, text in parts.items())


@pytest.mark.parametrize("name", GRAPHS)
def test_stages_are_those_of_the_golden_file(name: str, request: pytest.FixtureRequest) -> None:
    if not torch.__version__.startswith(TORCH):
        pytest.skip(f"the golden files are those of torch {TORCH}")
    if name == "conv_bn_relu" and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    path, text = FILES / f"{name}.txt", stages(name)
    if request.config.getoption("--update-golden", default=False):
        FILES.mkdir(exist_ok=True)
        path.write_text(text)
        return
    wanted = path.read_text() if path.exists() else ""
    if text != wanted:
        diff = difflib.unified_diff(wanted.splitlines(), text.splitlines(), str(path), "now", lineterm="")
        pytest.fail(
            "\n".join([*diff, "", "If the change is right: pytest --update-golden, and review the diff."]), False
        )


def test_every_golden_file_has_its_graph() -> None:
    assert {path.stem for path in FILES.glob("*.txt")} == set(GRAPHS)
