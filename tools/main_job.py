"""The main job: compile models with Treadle, check them against eager, and time them against eager and torch.compile.

    python3 tools/demo.py                     BERT and ResNet-18
    python3 tools/demo.py --all               the twelve models of the zoo
    python3 tools/demo.py gpt2 convnext_atto  these models
    python3 tools/demo.py --no-torch-compile  without torch.compile, which takes most of the time

Exit status: 0 if every model agreed with eager in one graph, else 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import compare
import zoo

DEFAULT_MODELS = ("bert", "resnet18")
DEMO_PHASES = ("cold", "steady")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/demo.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"any of: {', '.join(zoo.SCENARIOS)}")
    parser.add_argument("--all", action="store_true", help="all twelve models")
    parser.add_argument("--no-torch-compile", action="store_true", help="compare with eager only")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in zoo.SCENARIOS]
    if unknown:
        parser.error(f"unknown model {', '.join(unknown)}; choose from {', '.join(zoo.SCENARIOS)}")
    options.models = list(zoo.SCENARIOS) if options.all else options.models or list(DEFAULT_MODELS)
    return options


def why_not_passed(row: compare.Row) -> str | None:
    """Why a model has wrong outputs or more than one graph, or None."""
    wrong = row.why_not_right()
    if wrong:
        return wrong
    graphs, breaks = row.get("treadle", "graphs"), row.get("treadle", "breaks")
    if graphs != 1 or breaks:
        return f"{graphs} graphs; breaks: {'; '.join(breaks) or 'none'}"
    return None


def text(value: float | None, scale: float = 1.0, digits: int = 1) -> str:
    return "–" if value is None else f"{value * scale:.{digits}f}"


def table_of(rows: Sequence[compare.Row]) -> Table:
    caption = "compile: s to the first result, fresh process, empty caches; call: median ms, one thread, interleaved"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, caption=caption, caption_justify="left")
    table.add_column("\nmodel", no_wrap=True)
    for heading in ("right", "graphs"):
        table.add_column(f"\n{heading}", justify="right")
    for group, variants in (("compile", ("torch", "Treadle")), ("call", ("eager", "torch", "Treadle"))):
        for variant in variants:
            table.add_column(f"{group}\n{variant}", justify="right")
    table.add_column("eager /\nTreadle", justify="right")
    for row in rows:
        table.add_row(
            row.name,
            "[green]yes[/]" if row.why_not_right() is None else "[red]no[/]",
            str(row.get("treadle", "graphs") or "–"),
            *(text(row.get(variant, "cold_seconds")) for variant in ("torch.compile", "treadle")),
            *(text(row.get(variant, "steady_seconds"), 1e3, 2) for variant in ("eager", "torch.compile", "treadle")),
            text(row.ratio("steady_seconds", "eager", "treadle"), digits=2),
        )
    return table


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    variants = [v for v in compare.VARIANTS if not (options.no_torch_compile and v == "torch.compile")]
    console = Console()
    if not console.is_terminal:
        console.width = 120
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    rows = []
    compare.write_bytecode()
    with Progress(*columns, console=console) as progress:
        total = len(options.models) * compare.steps_of(variants, DEMO_PHASES)
        task = progress.add_task("starting", total=total)
        reported = 0

        def report(step: str) -> None:
            nonlocal reported
            progress.update(task, description=step, completed=reported)
            reported += 1
            if not console.is_terminal:
                console.print(f"[{reported}/{total}] {step}", markup=False)

        for name in options.models:
            rows.append(compare.compare(name, variants, DEMO_PHASES, report))
        progress.update(task, description="done", completed=total)
    console.print(table_of(rows))
    for row in rows:
        for what, message in row.errors.items():
            console.print(f"{row.name}: {what}: {message}", markup=False, style="red")
    failures = {row.name: reason for row in rows if (reason := why_not_passed(row))}
    for name, reason in failures.items():
        console.print(f"{name}: {reason}", markup=False, style="red")
    if not failures:
        console.print(f"All of {', '.join(options.models)}: outputs agree with eager, one graph each.", style="green")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
