"""What benchmarks of single programs share: their options, a process for each measurement, and the report."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
from markdown_table import markdown  # noqa: E402


def parsed(
    description: str | None, programs: Iterable[str], output: Path, arguments: Sequence[str]
) -> argparse.Namespace:
    """`programs`, `no_torch` and `output`, as given on the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(programs)
    parser.add_argument("--programs", nargs="+", choices=names, default=names, metavar="PROGRAM")
    parser.add_argument(
        "--no-torch", action="store_true", help="leave torch.compile out, which takes a minute for each program"
    )
    parser.add_argument("--output", type=Path, default=output, help="where the JSON goes")
    return parser.parse_args(arguments)


def run(
    description: str | None,
    script: str,
    programs: Iterable[str],
    output: Path,
    measure: Callable[[str, bool], dict[str, int]],
    arguments: Sequence[str],
) -> int:
    """Measure programs one by one, each in a process of its own, and report them: the whole of a script like this.

    measure(name, whether torch.compile is among the variants): microseconds of the variants.
    """
    options = parsed(description, programs, output, arguments)
    found: dict[str, dict[str, int]] = {}
    for name in options.programs:
        found[name] = in_own_process(measure, name, not options.no_torch)
        print(name, found[name], file=sys.stderr, flush=True)
    report(" ".join([f"python benchmarks/{script}", *arguments]), found, options.output)
    return 0


def in_own_process(measure: Callable[..., Any], *arguments: Any) -> Any:
    """What `measure` returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def interleaved(
    variants: Mapping[str, Callable[..., Any]],
    call: Callable[[Callable[..., Any]], Any],
    untimed: int,
    timed: int,
    tolerance: float,
) -> dict[str, int]:
    """Medians of the processor's microseconds of `call(variant)`, the variants in turn.

    Raises AssertionError where Treadle's results differ from eager's.
    """
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for _ in range(untimed + timed):
        results = {}
        for variant, forward in variants.items():
            start = time.process_time()
            results[variant] = call(forward)
            seconds[variant].append(time.process_time() - start)
        torch.testing.assert_close(results["treadle"], results["eager"], rtol=tolerance, atol=tolerance)
    return {variant: round(1e6 * statistics.median(each[untimed:])) for variant, each in seconds.items()}


def report(command: str, microseconds: Mapping[str, Mapping[str, int]], output: Path) -> None:
    """Write the microseconds of the variants of each program as JSON, and print them as a table with ratios to the first variant."""
    results = {"command": command, "machine": machine.describe(), "microseconds": microseconds}
    output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    variants = list(dict.fromkeys(variant for row in microseconds.values() for variant in row))
    first, *others = variants
    rows = [
        [name, *(str(row.get(v, "–")) for v in variants), *(_times(row, first, v) for v in others)]
        for name, row in microseconds.items()
    ]
    print(markdown(["us per call", *variants, *(f"x {first}: {v}" for v in others)], rows))


def _times(row: Mapping[str, int], first: str, variant: str) -> str:
    return f"{row[first] / row[variant]:.2f}" if variant in row else "–"
