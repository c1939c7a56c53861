"""Two commits of Treadle side by side on the twelve models: cold and warm start, trace, steady state, one small call.

    python benchmarks/commits.py BEFORE [AFTER]              AFTER: HEAD; about 20 minutes; to benchmarks/results/commits.json
    python benchmarks/commits.py BEFORE --models bert --rounds 5

Both commits are checked out into temporary directories and their extension modules are built there. Every figure comes from fresh
processes that alternate between the two commits, on one OpenMP thread:

cold    seconds from before `import treadle` to the first result, with empty caches; warm: the same with the caches filled
trace   seconds of a start that the tracer spends
steady  seconds per call, divided by eager's in the same process, both interleaved
call    nanoseconds of `x + 1` on 8 floats, divided by eager's in the same process

Starts and traces count with the smallest of their rounds (other processes can only add to them), ratios with the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import compare  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "commits.json"
PACKAGES = ("treadle", "treadle-autograd", "treadle-codegen", "treadle-frame", "treadle-shapes", "treadle-tracer")
FIGURES = ("cold", "warm", "trace", "steady")

# A worker uses what all commits have: `treadle.compile` and `treadle.stats().seconds`.
WORKER = """
import gc, json, sys, time
sys.path.insert(0, {tools!r})
import torch
import measure, zoo
torch.set_num_threads(1)
if sys.argv[1] == "call":
    import statistics, treadle
    x, functions, samples = torch.arange(8.0), {{}}, {{"eager": [], "treadle": []}}
    exec("def add_one(x): return x + 1")
    functions["treadle"], functions["eager"] = treadle.compile(add_one), lambda x: x + 1
    for function in functions.values():
        for _ in range(3):
            function(x)
    for _ in range(31):
        for name, function in functions.items():
            start = time.perf_counter_ns()
            for _ in range(2000):
                function(x)
            samples[name].append((time.perf_counter_ns() - start) / 2000)
    medians = {{name: statistics.median(values) for name, values in samples.items()}}
    print(json.dumps({{"call": medians["treadle"] / medians["eager"], "nanoseconds": medians["treadle"]}}))
    raise SystemExit
scenario = zoo.SCENARIOS[sys.argv[2]]
model, inputs = scenario.build(), scenario.inputs()
with torch.no_grad():
    if sys.argv[1] == "first":
        # A full collection takes 0.2 s with these libraries. Whether one falls into the measured time would be chance.
        gc.collect()
        gc.freeze()
        start = time.perf_counter()
        import treadle
        treadle.compile(model)(**inputs)
        seconds = time.perf_counter() - start
        spent = treadle.stats().seconds
        print(json.dumps({{"seconds": seconds, "trace": spent["trace"]}}))
    else:
        import treadle
        compiled = treadle.compile(scenario.build())
        calls = {{"eager": lambda: model(**inputs), "treadle": lambda: compiled(**inputs)}}
        medians = measure.interleaved_medians(calls, 3.0, least=10)
        print(json.dumps({{"steady": medians["treadle"] / medians["eager"], "seconds": medians["treadle"]}}))
"""


class Checkout:
    """One commit in a directory of its own, with the extension module of treadle-frame built."""

    def __init__(self, commit: str, directory: Path) -> None:
        self.commit = commit
        self.directory = directory
        run = ["git", "-C", str(ROOT)]
        subprocess.run([*run, "worktree", "add", "--quiet", "--detach", str(directory), commit], check=True)
        frame = directory / "packages" / "treadle-frame"
        subprocess.run([sys.executable, "hatch_build.py"], cwd=frame, check=True, stdout=subprocess.DEVNULL)
        self.sources = [str(directory / "packages" / name / "src") for name in PACKAGES]
        # Installed packages have their byte-code, and no figure should contain compiling Python.
        subprocess.run([sys.executable, "-m", "compileall", "-q", *self.sources], check=True)

    def remove(self) -> None:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(self.directory)], check=True)

    def run(self, arguments: Sequence[str], cache: Path) -> dict[str, Any]:
        """What a worker of this commit prints. Raises CalledProcessError when it fails."""
        environment = compare.worker_environment(cache) | {"PYTHONPATH": os.pathsep.join(self.sources)}
        command = [sys.executable, "-W", "ignore", "-c", WORKER.format(tools=str(ROOT / "tools")), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return list(measure.lines_of_json(done.stdout))[-1]


def measure_model(name: str, checkouts: Mapping[str, Checkout], rounds: int) -> dict[str, dict[str, float]]:
    """Commit -> figure -> value."""
    samples: dict[str, dict[str, list[float]]] = {side: {figure: [] for figure in FIGURES} for side in checkouts}
    for turn in range(rounds):
        order = list(checkouts) if turn % 2 == 0 else list(checkouts)[::-1]
        for side in order:
            with tempfile.TemporaryDirectory(prefix="treadle-commits-") as cache:
                cold = checkouts[side].run(["first", name], Path(cache))
                warm = checkouts[side].run(["first", name], Path(cache))
                steady = checkouts[side].run(["steady", name], Path(cache))
            taken = samples[side]
            taken["cold"].append(cold["seconds"])
            taken["trace"] += [cold["trace"], warm["trace"]]
            taken["warm"].append(warm["seconds"])
            taken["steady"].append(steady["steady"])
    return {
        side: {figure: (statistics.median if figure == "steady" else min)(values) for figure, values in figures.items()}
        for side, figures in samples.items()
    }


def measure_call(checkouts: Mapping[str, Checkout], rounds: int) -> dict[str, float]:
    """Commit -> `x + 1` compiled over eager."""
    samples: dict[str, list[float]] = {side: [] for side in checkouts}
    with tempfile.TemporaryDirectory(prefix="treadle-commits-") as cache:
        for _ in range(rounds):
            for side, checkout in checkouts.items():
                samples[side].append(checkout.run(["call"], Path(cache))["call"])
    return {side: statistics.median(values) for side, values in samples.items()}


def table(models: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Every figure of AFTER over that of BEFORE, with geometric means."""
    ratios = {
        name: {figure: sides["after"][figure] / sides["before"][figure] for figure in FIGURES}
        for name, sides in models.items()
    }
    rows = [[name, *(f"{found[figure]:.3f}" for figure in FIGURES)] for name, found in ratios.items()]
    means = [compare.geometric_mean(found[figure] for found in ratios.values()) for figure in FIGURES]
    rows.append(["geometric mean", *(f"{mean:.3f}" for mean in means)])
    return markdown(["after / before", *FIGURES], rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default="HEAD", help="a commit")
    parser.add_argument(
        "--models", nargs="+", choices=list(zoo.SCENARIOS), default=list(zoo.SCENARIOS), metavar="MODEL"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes per commit and figure")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {
        "command": " ".join(["python benchmarks/commits.py", *arguments]),
        "machine": machine.describe(),
        "commits": {
            side: machine.first_line("git", "rev-parse", "--short", getattr(options, side))
            for side in ("before", "after")
        },
    }
    with tempfile.TemporaryDirectory(prefix="treadle-commits-") as directory:
        checkouts = {side: Checkout(getattr(options, side), Path(directory) / side) for side in ("before", "after")}
        try:
            results["call"] = measure_call(checkouts, 2 * options.rounds + 1)
            print(f"call: {results['call']}", flush=True)
            results["models"] = {}
            for name in options.models:
                results["models"][name] = measure_model(name, checkouts, options.rounds)
                print(f"{name}: {results['models'][name]}", file=sys.stderr, flush=True)
                options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        finally:
            for checkout in checkouts.values():
                checkout.remove()
    print(table(results["models"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
