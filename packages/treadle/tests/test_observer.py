from __future__ import annotations

import pytest
import torch
from torch import fx

from treadle import logs
from treadle.observer import Reporter
from treadle.stats import StatsRecorder
from treadle_tracer import Skip, SkipKind
from treadle_tracer.errors import Unsupported, break_table


@pytest.fixture
def reporter():
    yield Reporter(StatsRecorder())
    logs.set_logs()


def test_graphs_count_their_operations(reporter, capsys):
    logs.set_logs("graph_code", "graph_sizes")
    gm = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    for node in gm.graph.nodes:
        node.meta["example_value"] = torch.empty(2, 3)
    reporter.on_graph(gm)
    assert reporter.recorder().graph_nodes == (2,)
    printed = capsys.readouterr().err
    assert "torch.relu" in printed and "relu: (2, 3) float32" in printed


def test_breaks_carry_code_reason_and_line(reporter, capsys):
    logs.set_logs("graph_breaks")
    code = sorted(break_table())[0]
    line = test_breaks_carry_code_reason_and_line.__code__.co_firstlineno
    reporter.on_break(Unsupported(code, "the context", (("outer.py", 1, "f"), (__file__, line, "g"))))
    (broke,) = reporter.recorder().breaks
    assert broke.code == code and "the context" in broke.reason and broke.where == f"{__file__}:{line}"
    printed = capsys.readouterr().err
    assert "def test_breaks_carry" in printed and "hint:" in printed


def test_skips_of_library_code_are_not_counted(reporter):
    code = test_skips_of_library_code_are_not_counted.__code__
    reporter.on_skip(code, Skip(SkipKind.LIBRARY, "code of the package numpy"))
    reporter.on_skip(code, Skip(SkipKind.GENERATOR, "a generator"))
    assert len(reporter.recorder().skipped) == 1


def test_recompiles_name_the_function(reporter, capsys):
    logs.set_logs("recompiles")
    reporter.on_recompile(test_recompiles_name_the_function.__code__, "L['x'].shape[0] == 3")
    (recompile,) = reporter.recorder().recompiles
    assert recompile.function == "test_recompiles_name_the_function"
    assert "L['x'].shape[0] == 3" in capsys.readouterr().err
