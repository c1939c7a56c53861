"""Markdown tables of the benchmarks of dynamic shapes: compilations, the shape engine, the price of symbolic sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from compare import geometric_mean
from markdown_table import markdown, number, times

KINDS = {
    "arithmetic": "arithmetic operation",
    "decision": "decision",
    "guards": "guard added",
    "guard functions": "guard function produced",
}
ENGINES = ("treadle_shapes", "torch ShapeEnv")


# ------------------------------------------------------------------------------------------------ dynamic_matrix.json


def matrix_section(results: Mapping[str, Any]) -> str:
    """How often each engine compiled: models over batch sizes and lengths, small functions over sequences of sizes."""
    ours, theirs = results["treadle"], results["torch"]
    models = [
        [name, str(row["shapes"]), str(row["compilations"]), str(theirs["models"][name]["compilations"])]
        for name, row in ours["models"].items()
    ]
    sequences = list(dict.fromkeys(sequence for row in ours["functions"].values() for sequence in row))
    functions = [
        [name, *(_both(row.get(sequence), theirs["functions"][name].get(sequence)) for sequence in sequences)]
        for name, row in ours["functions"].items()
    ]
    return "\n\n".join(
        (
            markdown(("model", "shapes", "Treadle", "torch.compile"), models),
            "Treadle / torch.compile, by the sizes that one dimension took in turn:",
            markdown(("function", *sequences), functions),
        )
    )


def _both(ours: int | None, theirs: int | None) -> str:
    return "" if ours is None else f"{ours} / {theirs}"


# ------------------------------------------------------------------------------------------------ shapes.json


def shapes_section(results: Mapping[str, Any]) -> str:
    """Microseconds per query on recorded traces of both engines; the trace phase with and without symbols; the package."""
    queries = "\n\n".join(_queries_table(results["queries"], kind, title) for kind, title in KINDS.items())
    traces = markdown(
        ("trace phase, s", "static", "dynamic", "ratio"),
        (
            [name, number(row["static"], 3), number(row["dynamic"], 3), times(row["ratio"])]
            for name, row in results["traces"].items()
        ),
    )
    package = results["package"]
    sentence = (
        f"`import treadle_shapes` takes {number(package['import milliseconds'])} ms beyond Python's own start; "
        f"the wheel has {package['wheel bytes'] // 1024} KiB."
    )
    return f"{queries}\n\n{traces}\n\n{sentence}"


def _queries_table(queries: Mapping[str, Any], kind: str, title: str) -> str:
    headings = (f"µs per {title}", "treadle-shapes", "torch ShapeEnv", "ratio", "SymPy")
    rows = []
    for name, engines in queries.items():
        found = [engines.get(engine, {}).get(kind) for engine in ENGINES]
        if any(row is None for row in found):
            continue
        ours, theirs = (row["microseconds"] for row in found)
        plain = engines.get("SymPy", {}).get(kind, {}).get("microseconds")
        rows.append([name, number(ours, 2), number(theirs, 2), times(theirs / ours, 1), number(plain, 2)])
    return markdown(headings, rows)


# ------------------------------------------------------------------------------------------------ dynamic_speed.json


def speed_section(results: Mapping[str, Any]) -> str:
    """Time of a dynamic compile over that of a static compile of the same shape, cases in all their sizes."""
    by_case: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in results["rows"]:
        by_case[row["case"], row["mode"]].append(row["ratio"]["dynamic"])
    names = list(dict.fromkeys(name for name, _ in by_case))
    rows = [[name, *_spread(by_case.get((name, "batch"))), *_spread(by_case.get((name, "all")))] for name in names]
    headings = ("dynamic / static", "batch symbolic", "worst", "all sizes symbolic", "worst")
    summary = results["summary"]
    sentence = (
        f"Geometric mean of {summary['cases']} cases {summary['geometric_mean']:.3f}; "
        f"{summary['above_1.05']} are above 1.05, the worst is {summary['worst']:.2f}."
    )
    return f"{markdown(headings, rows)}\n\n{sentence}"


def _spread(ratios: Sequence[float] | None) -> Iterable[str]:
    return ("", "") if not ratios else (number(geometric_mean(ratios), 3), number(max(ratios), 3))
