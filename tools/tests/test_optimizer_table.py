"""One row per optimizer; what was not measured has no number."""

from __future__ import annotations

from optimizer_table import optimizers_section

LOOP, FOREACH, FUSED = ({"step": step * 1e-6, "compile": 0.0} for step in (300.0, 150.0, 100.0))
CASES = {
    "adam": {
        "loop": LOOP,
        "foreach": FOREACH,
        "fused": FUSED,
        "torch.compile": {"step": 2e-4, "compile": 20.0},
        "treadle": {"step": 1e-4, "compile": 1.5, "compiles": 1},
    },
    "whole": {"loop": LOOP, "torch.compile": LOOP, "treadle": {"step": 1e-4, "compile": 2.0}},
}


def test_a_row_for_each_optimizer():
    *_, adam, whole, _, load = optimizers_section({"cases": CASES, "load": [1.5, 0.5, 3.0]}).splitlines()
    assert [cell.strip() for cell in adam.strip("|").split("|")] == [
        "adam", "300", "150", "100", "200", "100", "3.00 ×", "2.00 ×", "1.5", "20.0", "1",
    ]  # fmt: skip
    assert [cell.strip() for cell in whole.strip("|").split("|")][2:4] == ["–", "–"]
    assert "0.5 to 3.0" in load
