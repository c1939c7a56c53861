"""Markdown tables of the benchmarks of dynamic shapes: compilations, the shape engine, the cost of symbolic sizes."""

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
LONG_ENOUGH = 1e-5  # seconds: shorter calls are dominated by the call itself, as in benchmarks/dynamic_speed.py


# ------------------------------------------------------------------------------------------------ dynamic_matrix.json


def matrix_section(results: Mapping[str, Any]) -> str:
    """Numbers of compilations of each engine, for models over batch sizes and lengths and for functions over sequences of sizes."""
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
    """Run time of a dynamic compile divided by that of a static compile of the same shape, for every case and size.

    Once with the kernels that serve all sizes, once with those specialised to frequent sizes.
    """
    rows = results["rows"]
    kernels = [name for name in ("dynamic", "hot") if name in rows[0]["ratio"]]
    by_case: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        for name in kernels:
            by_case[row["case"], row["mode"], name].append(row["ratio"][name])
    cases = list(dict.fromkeys(case for case, _, _ in by_case))
    columns = [(mode, name) for mode in ("batch", "all") for name in kernels]
    lines = [[case, *(cell for column in columns for cell in _spread(by_case.get((case, *column))))] for case in cases]
    headings = ["dynamic / static"]
    for mode, name in columns:
        headings += [
            f"{'batch' if mode == 'batch' else 'all sizes'} symbolic{', hot' if name == 'hot' else ''}",
            "worst",
        ]
    long = [row for row in rows if row["seconds"][""] >= LONG_ENOUGH]
    short = [row for row in rows if row["seconds"][""] < LONG_ENOUGH]
    sentences = [
        f"{len(group)} cases whose static call takes {words}: "
        + "; ".join(_figures(group, name) for name in kernels)
        + "."
        for group, words in ((long, "at least 10 µs"), (short, "less than 10 µs"))
        if group
    ]
    return "\n\n".join((markdown(headings, lines), *sentences))


def _figures(rows: Sequence[Mapping[str, Any]], kernels: str) -> str:
    """Ratios to static, and microseconds, which say more about short calls."""
    ratios = [row["ratio"][kernels] for row in rows]
    above = [(row["ratio"][kernels] - 1) * row["seconds"][""] * 1e6 for row in rows]
    mean = f"geometric mean {geometric_mean(ratios):.3f}, {sum(ratio > 1.05 for ratio in ratios)} above 1.05"
    words = {"dynamic": "with kernels for all sizes", "hot": "hot"}[kernels]
    return f"{words} {mean}, the worst {max(ratios):.2f} ({sum(above) / len(above):.2f} µs more on average)"


def _spread(ratios: Sequence[float] | None) -> Iterable[str]:
    return ("", "") if not ratios else (number(geometric_mean(ratios), 3), number(max(ratios), 3))
