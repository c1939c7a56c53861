"""Turn the benchmarks' JSON into Markdown tables, and put them into README.md and docs/figures.md between their markers.

python tools/readme_table.py           rewrite the tables
python tools/readme_table.py --check   exit status 1 if they differ from the JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare import Row, geometric_mean
from dynamic_tables import matrix_section, shapes_section, speed_section
from markdown_table import MISSING, markdown, number, times
from optimizer_table import optimizers_section

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


# ------------------------------------------------------------------------------------------------ the twelve models

COMPILED = ("torch.compile", "treadle")
EVERY = ("eager", *COMPILED)


def graphs_of(row: Row) -> str:
    graphs, breaks = row.get("treadle", "graphs"), row.get("treadle", "breaks")
    return MISSING if graphs is None else f"{graphs} / {len(breaks)}"


def speed_table(rows: Sequence[Row]) -> str:
    """Milliseconds per call, and the error against float64 as a multiple of eager's."""
    headings = (
        "ms per call",
        "eager",
        "torch.compile",
        "Treadle",
        "faster than eager",
        "than torch.compile",
        "error / eager's",
        "graphs / breaks",
    )

    def ratios(row: Row) -> Iterable[float | None]:
        return (row.ratio("steady_seconds", variant, "treadle") for variant in ("eager", "torch.compile"))

    lines = [
        [
            row.name,
            *(number(row.get(variant, "steady_seconds"), 2, 1e3) for variant in EVERY),
            *map(times, ratios(row)),
            times(row.get("treadle", "error_ratio")),
            graphs_of(row),
        ]
        for row in rows
    ]
    means = [geometric_mean(column) for column in zip(*map(ratios, rows), strict=True)]
    return markdown(headings, [*lines, ["geometric mean", "", "", "", *map(times, means), "", ""]])


def start_table(rows: Sequence[Row]) -> str:
    """Seconds to the first result of a fresh process, and the peak memory of that process."""
    headings = (
        "s to the first result",
        "cold: torch.compile",
        "Treadle",
        "ratio",
        "warm: torch.compile",
        "Treadle",
        "ratio",
        "peak MiB: eager",
        "torch.compile",
        "Treadle",
    )
    phases = ("cold_seconds", "warm_seconds")

    def starts(row: Row) -> Iterable[str]:
        for phase in phases:
            yield from (number(row.get(variant, phase), 2) for variant in COMPILED)
            yield number(row.ratio(phase, "treadle", "torch.compile"), 3)

    lines = [[row.name, *starts(row), *(number(row.get(variant, "peak_mib"), 0) for variant in EVERY)] for row in rows]
    means = [geometric_mean(row.ratio(phase, "treadle", "torch.compile") for row in rows) for phase in phases]
    cells = [cell for mean in means for cell in ("", "", number(mean, 3))]
    return markdown(headings, [*lines, ["geometric mean", *cells, "", "", ""]])


def models_tables(rows: Sequence[Row]) -> str:
    return f"{speed_table(rows)}\n\n{start_table(rows)}"


# ------------------------------------------------------------------------------------------------ training


def training_table(models: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Milliseconds per training step, seconds of the first one, and what is kept for backward."""
    headings = (
        "ms per training step",
        *("eager", "torch.compile", "Treadle", "faster than eager", "than torch.compile"),
        *("first step, s: torch.compile", "Treadle", "warm: torch.compile", "Treadle"),
        *("kept MiB: eager", "torch.compile", "Treadle", "error / eager's"),
    )
    figures = [("step", "eager"), ("step", "torch.compile"), *((f, "torch.compile") for f in ("first", "warm"))]

    def ratio(found: Mapping[str, Mapping[str, float]], figure: str, variant: str) -> float:
        return found[variant][figure] / found["treadle"][figure]

    lines = [
        [
            name,
            *(number(found[variant]["step"], 1, 1e3) for variant in EVERY),
            *(times(ratio(found, "step", variant)) for variant in ("eager", "torch.compile")),
            *(number(found[variant][figure], 2) for figure in ("first", "warm") for variant in COMPILED),
            *(number(found[variant]["saved_mib"], 1) for variant in EVERY),
            times(found["treadle"].get("error")),
        ]
        for name, found in models.items()
    ]
    eager, compiled, first, warm = (
        times(geometric_mean(ratio(found, *figure) for found in models.values())) for figure in figures
    )
    return markdown(headings, [*lines, ["geometric mean", "", "", "", eager, compiled, "", first, "", warm, *[""] * 4]])


# ------------------------------------------------------------------------------------------------ the cost of a call


def overhead_table(nanoseconds: Mapping[str, float]) -> str:
    eager = nanoseconds.get("eager")
    headings = ("`x + 1` on 8 floats", "µs per call", "against eager")
    rows = (
        [name, number(value, 2, 1e-3), times(value / eager if eager else None)]
        for name, value in sorted(nanoseconds.items(), key=lambda item: item[1])
    )
    return markdown(headings, rows)


# ------------------------------------------------------------------------------------------------ documents


def command_of(name: str) -> str:
    return f"python benchmarks/{SCRIPTS.get(name, name)}.py"


def provenance(name: str, results: Mapping[str, Any]) -> str:
    """One sentence: command, processor, versions, day."""
    machine = results["machine"]
    command = results.get("command", command_of(name))
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    return (
        f"`{command}` on {machine['processor']} ({machine['cores']} cores, one thread used), "
        f"Python {machine['python']}, {versions}; {machine['date']}, commit {machine['commit']}."
    )


def models_section(results: Mapping[str, Any]) -> str:
    return models_tables([Row(**row) for row in results["models"]])


def training_section(results: Mapping[str, Any]) -> str:
    return training_table(results["models"])


def overhead_section(results: Mapping[str, Any]) -> str:
    return overhead_table(results["nanoseconds"])


Sections = Mapping[str, Callable[[Mapping[str, Any]], str]]
SCRIPTS = {"shapes": "shapes_figures"}  # results -> script, where their names differ
DOCUMENTS: Mapping[str, Sections] = {
    "README.md": {
        "models": models_section,
        "training": training_section,
        "call_overhead": overhead_section,
        "dynamic_matrix": matrix_section,
    },
    "docs/figures.md": {
        "shapes": shapes_section,
        "dynamic_speed": speed_section,
        "optimizers": optimizers_section,
    },
}


def section(name: str, make: Callable[[Mapping[str, Any]], str], results_directory: Path = RESULTS) -> str:
    """The text of a section: table and provenance, or a sentence that says how to measure it."""
    path = results_directory / f"{name}.json"
    if not path.exists():
        return f"Not measured yet: `{command_of(name)}`."
    results = json.loads(path.read_text(encoding="utf-8"))
    return f"{make(results)}\n\n{provenance(name, results)}"


def with_sections(text: str, sections: Sections, results_directory: Path = RESULTS) -> str:
    """A document's text in which every section between `<!-- name:begin -->` and `<!-- name:end -->` is replaced."""
    for name, make in sections.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the document must hold {begin} and {end} once each")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{section(name, make, results_directory)}\n{end}{rest.partition(end)[2]}"
    return text


def main(arguments: Sequence[str]) -> int:
    stale = []
    for name, sections in DOCUMENTS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        wanted = with_sections(text, sections)
        if wanted != text:
            stale.append(name)
            if "--check" not in arguments:
                (ROOT / name).write_text(wanted, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"{', '.join(stale)}: differs from the benchmarks' JSON; run python tools/readme_table.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
