"""Compare eager, torch.compile and Treadle on scenarios of the zoo, each measurement in a process of its own.

tools/main_job.py (two models, with a progress display) and benchmarks/models.py (all models, to JSON) use it. measure.py is the
worker. Every comparison has a new cache directory, so a cold start finds no cache.
"""

from __future__ import annotations

import compileall
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measure

VARIANTS = ("eager", "torch.compile", "treadle")
WORKER = Path(__file__).with_name("measure.py")
PHASES = ("cold", "warm", "steady")
PACKAGES = ("treadle", "treadle_tracer", "treadle_autograd", "treadle_codegen", "treadle_frame", "treadle_shapes")

# Environment variables for the compilers' cache directories.
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TREADLE_CACHE_DIR", "XDG_CACHE_HOME")

Figures = dict[str, Any]


@dataclass
class Row:
    """The figures of one scenario: variant -> figure -> value. `errors`: what could not be measured -> why."""

    name: str
    figures: dict[str, Figures] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def get(self, variant: str, figure: str) -> Any:
        return self.figures.get(variant, {}).get(figure)

    def ratio(self, figure: str, over: str, under: str) -> float | None:
        """`figure` of variant `over` divided by that of `under`, or None if one is missing."""
        above, below = self.get(over, figure), self.get(under, figure)
        return above / below if above and below else None

    def why_not_right(self, variant: str = "treadle") -> str | None:
        """Why the variant's outputs do not agree with eager, or None if they do."""
        failed = [message for key, message in self.errors.items() if key.startswith((variant, "steady"))]
        if failed:
            return failed[0]
        ratio = self.get(variant, "error_ratio")
        if ratio is None:
            return "not checked"
        if not ratio <= measure.ALLOWED_ERROR_RATIO:
            return f"error is {ratio:.3g} x eager's own, allowed {measure.ALLOWED_ERROR_RATIO:g}"
        return None


def worker_environment(cache: Path) -> dict[str, str]:
    """The environment of a worker: one OpenMP thread, no network, the compilers' caches under `cache`."""
    caches = {name: str(cache / name.lower()) for name in CACHE_VARIABLES}
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **caches}


def write_bytecode() -> None:
    """Write the packages' byte-code, as pip does, so that no start of a variant compiles Python."""
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            compileall.compile_dir(Path(spec.origin).parent, quiet=1)


def run_worker(
    arguments: Sequence[str], cache: Path, timeout: float, worker: Path = WORKER
) -> tuple[Figures | None, str]:
    """Run a worker, which prints its figures as a line of JSON. Returns (its figures, "") or (None, why there are none)."""
    command = [sys.executable, str(worker), *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=worker_environment(cache))
    except subprocess.TimeoutExpired:
        return None, f"took more than {timeout:.0f} s"
    found = list(measure.lines_of_json(run.stdout))
    if run.returncode == 0 and found:
        return found[-1], ""
    last = [line for line in run.stderr.splitlines() if line.strip()][-1:]
    return None, (last or [f"worker ended with status {run.returncode}"])[0]


def first_results(row: Row, phase: str, variant: str, cache: Path, timeout: float) -> None:
    """Measure a fresh process up to its first result. `phase` is the name of the figure, "cold" or "warm"."""
    figures, error = run_worker(["first", row.name, variant], cache, timeout)
    if figures is None:
        row.errors[f"{variant} {phase}"] = error
        return
    kept = row.figures.setdefault(variant, {})
    kept[f"{phase}_seconds"] = figures.pop("seconds")
    if phase == "cold":
        kept.update(figures)


def steady_state(row: Row, variants: Sequence[str], cache: Path, timeout: float) -> None:
    """Measure all variants that had a first result, interleaved in one process."""
    working = [variant for variant in variants if f"{variant} cold" not in row.errors]
    figures, error = run_worker(["steady", row.name, *working], cache, timeout)
    if figures is None:
        row.errors["steady"] = error
        return
    for variant, values in figures.items():
        kept = row.figures.setdefault(variant, {})
        kept["steady_seconds"] = values["seconds"]
        kept["error_ratio"] = values["error_ratio"]


def compare(
    name: str,
    variants: Sequence[str] = VARIANTS,
    phases: Iterable[str] = PHASES,
    report: Callable[[str], None] = lambda text: None,
    timeout: float = 600.0,
) -> Row:
    """Measure one scenario. Calls `report` with a description before each step."""
    row, phases = Row(name), tuple(phases)
    with tempfile.TemporaryDirectory(prefix="treadle-compare-") as directory:
        for phase in ("cold", "warm"):
            for variant in variants if phase in phases else ():
                if variant == "eager" and phase == "warm":
                    continue
                report(f"{name}: {variant}, {phase} start in a fresh process")
                first_results(row, phase, variant, Path(directory), timeout)
        if "steady" in phases:
            report(f"{name}: right? how fast? all variants interleaved")
            steady_state(row, variants, Path(directory), timeout)
    return row


def steps_of(variants: Sequence[str], phases: Iterable[str]) -> int:
    """How many times `compare` calls `report`."""
    compiled = [variant for variant in variants if variant != "eager"]
    sizes: Mapping[str, int] = {"cold": len(variants), "warm": len(compiled), "steady": 1}
    return sum(sizes[phase] for phase in phases)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of the values that are not missing, None if all are."""
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else None
