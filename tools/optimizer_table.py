"""The Markdown table of benchmarks/optimizers.py: steps of optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markdown_table import markdown, number, times

EAGER = ("loop", "foreach", "fused")


def table(cases: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    variants = [*EAGER, "torch.compile", "treadle"]
    headings = [
        "µs per step",
        *variants,
        "faster than loop",
        "faster than torch.compile",
        "compile, s",
        "torch.compile's",
        "compiles",
    ]
    rows = []
    for case, found in cases.items():
        own = found["treadle"]["step"]
        row = [number(found[v]["step"] if v in found else None, 0, 1e6) for v in variants]
        row += [times(found[v]["step"] / own) for v in ("loop", "torch.compile")]
        row += [number(found[v]["compile"], 1) for v in ("treadle", "torch.compile")]
        rows.append([case, *row, number(found["treadle"].get("compiles"), 0)])
    return markdown(headings, rows)


def optimizers_section(results: Mapping[str, Any]) -> str:
    """The table, and what the machine was doing meanwhile."""
    load = results["load"]
    return f"{table(results['cases'])}\n\nLoad of the machine while this ran: {min(load)} to {max(load)}."
