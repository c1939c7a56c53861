"""What compiling a training step costs per node of the joint graph, by phase.

    python benchmarks/trace_cost.py                                the twelve models, each in a process of its own
    python benchmarks/trace_cost.py --models bert --profile out    writes a cProfile of the compilation `again` to `out`

All figures are microseconds of CPU time of the calling thread per ATen operator of the joint graph; the C++ compiler, another process,
is left out. A process compiles three times:

first      with an empty cache directory, and with everything that is imported and set up then
again      after `treadle.reset()`, with another empty cache directory: what each operator costs
found      after another reset, with what the last compilation has kept: programs of gradients and generated code are found, not made

trace      bytecode to a traced graph, guards and replacement code
joint      traced graph to the joint graph of forward and backward
divide     the minimum cut, and the graphs of the two halves
codegen    lowering, scheduling, generated code, of both halves
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown  # noqa: E402
from training import training_step  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "trace_cost.json"
ATTEMPTS = ("first", "again", "found")
PHASES = ("trace", "joint", "divide", "codegen")


class Clock:
    """CPU seconds by phase. A phase inside another does not count for that one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._phases: list[str] = []
        self._since = time.thread_time()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._switch()
        self._phases.append(name)
        try:
            yield
        finally:
            self._switch()
            self._phases.pop()

    def _switch(self) -> None:
        now = time.thread_time()
        if self._phases:
            self.seconds[self._phases[-1]] += now - self._since
        self._since = now


def watch(clock: Clock, counts: list[int]) -> None:
    """Let the phases of the compiler tell `clock` when they run, and note the operators of each joint graph."""
    import treadle_codegen
    from treadle_autograd import partition, programs
    from treadle_tracer import compilation

    def timed(module: Any, name: str, phase: str) -> None:
        function = getattr(module, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            with clock.phase(phase):
                result = function(*args, **kwargs)
            if name == "trace_joint" and result is not None:
                counts.append(sum(isinstance(n.target, torch._ops.OpOverload) for n in result.graph.nodes))
            return result

        setattr(module, name, run)

    timed(programs, "trace_joint", "joint")
    timed(programs, "divided", "divide")
    timed(partition.Halves, "backward", "divide")
    for name in ("compile_graph", "find_graph"):
        timed(treadle_codegen, name, "codegen")
    timed(compilation.Compilation, "run", "trace")


def measure(name: str, profile: str | None) -> dict[str, Any]:
    """The figures of one model, in this process."""
    import treadle

    torch.set_num_threads(1)
    scenario = zoo.SCENARIOS[name]
    model = scenario.build().train()
    inputs = scenario.inputs()
    clock, counts = Clock(), list[int]()
    watch(clock, counts)
    found: dict[str, Any] = {}
    for attempt in ATTEMPTS:
        treadle.reset()
        # Named, so that the cache is another: `treadle.compile` of the same model with the same options shares what it has made before.
        cache = os.environ["TREADLE_CACHE_DIR"] + ("" if attempt == "first" else "-again")
        step = training_step(model, treadle.compile(model, options={"cache_dir": cache}), inputs)
        clock.seconds.clear()
        counts.clear()
        if profile is not None and attempt == "again":
            profiler = cProfile.Profile()
            profiler.runcall(step)
            profiler.dump_stats(profile)
        else:
            step()
        found.setdefault("operators", sum(counts))
        found[attempt] = {phase: 1e6 * clock.seconds[phase] / found["operators"] for phase in PHASES}
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(zoo.SCENARIOS), default=list(zoo.SCENARIOS))
    parser.add_argument("--profile", help="where a cProfile of the last model's compilation `again` goes")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure(options.models[0], options.profile)))
        return 0
    models: dict[str, Any] = {}
    load = [round(os.getloadavg()[0], 1)]
    for name in options.models:
        command = [sys.executable, __file__, "--here", "--models", name]
        command += ["--profile", options.profile] if options.profile else []
        with tempfile.TemporaryDirectory(prefix="treadle-trace-cost-") as cache:
            environment = {**os.environ, "TREADLE_CACHE_DIR": os.path.join(cache, "first")}
            run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        models[name] = json.loads(run.stdout.splitlines()[-1])
        print(name, models[name], file=sys.stderr, flush=True)
    command_line = " ".join(["python benchmarks/trace_cost.py", *arguments])
    load.append(round(os.getloadavg()[0], 1))  # of the last minute, at the beginning and at the end
    results = {"command": command_line, "machine": machine.describe(), "load": load, "models": models}
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    headings = ["us per operator", "operators", *(f"{a}: {p}" for a in ATTEMPTS for p in (*PHASES, "all"))]
    rows = [
        [name, str(row["operators"])] + [f"{v:.0f}" for a in ATTEMPTS for v in (*row[a].values(), sum(row[a].values()))]
        for name, row in models.items()
    ]
    print(markdown(headings, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
