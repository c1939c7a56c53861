"""Programs whose Python loops unroll into large graphs: how long they take to compile, and how fast they are then.

    python benchmarks/unrolled.py                    to benchmarks/results/unrolled.json
    python benchmarks/unrolled.py --torch filter     torch.compile as well for these programs, for at most --patience seconds each

Each figure is from a fresh process with one thread and an empty cache. Compile time is processor time of the first call, compilers
included, less that of a later call. Calls of eager and of the compiled function are interleaved; the fastest of each counts. In training a
call is a forward and a backward pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import measure  # noqa: E402
from markdown_table import markdown  # noqa: E402
from unrolled_programs import SCENARIOS  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "unrolled.json"
TOOLS = ("treadle", "torch.compile")


def _all_processes() -> float:
    """Processor time of this process and of those it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def figures_of(tool: str, name: str, steps: int, calls: int) -> dict[str, Any]:
    """The figures of one program, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    scenario = SCENARIOS[name]
    function, args = scenario.build(steps)
    compile_it: Callable[..., Any] = torch.compile
    if tool == "treadle":
        import treadle

        compile_it = treadle.compile

    def call(f: Callable[..., Any]) -> float:
        start = time.process_time()
        with torch.set_grad_enabled(scenario.trains):
            result = f(*args)
        if scenario.trains:
            result.sum().backward()
        return time.process_time() - start

    call(function)
    compile_it(lambda x: x.relu() + 1)(torch.ones(2, 2))  # imports, and what is set up once
    fast = compile_it(function)
    start, began = _all_processes(), time.perf_counter()
    call(fast)
    first, wall = _all_processes() - start, time.perf_counter() - began
    call(fast)
    eager, compiled = zip(*[(call(function), call(fast)) for _ in range(calls)], strict=True)
    found = {"compile": first - min(compiled), "wall": wall, "eager": min(eager), "call": min(compiled)}
    if tool == "treadle":
        stats = treadle.stats()
        found |= {"graphs": stats.graphs - 1, "skipped": len(stats.skipped)}
    return found


def _run(tool: str, name: str, steps: int, options: argparse.Namespace) -> dict[str, Any] | str:
    """The figures from a process of its own, or why there are none."""
    with tempfile.TemporaryDirectory() as cache:
        places = {"TREADLE_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, __file__, "--one", tool, name, str(steps), "--calls", str(options.calls)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                timeout=options.patience,
                env={**os.environ, **places},
            )
        except subprocess.TimeoutExpired:
            return f"more than {options.patience} s"
    return list(measure.lines_of_json(done.stdout))[-1]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--torch", nargs="*", choices=list(SCENARIOS), default=[], help="with torch.compile as well")
    parser.add_argument("--calls", type=int, default=5, help="calls of eager and compiled, of which the fastest count")
    parser.add_argument("--patience", type=int, default=180, help="seconds for one process")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    parser.add_argument("--one", nargs=3, metavar=("TOOL", "PROGRAM", "STEPS"), help="in this process, as JSON")
    options = parser.parse_args(arguments)
    if options.one:
        tool, name, steps = options.one
        print(json.dumps(figures_of(tool, name, int(steps), options.calls)))
        return 0
    figures: dict[str, dict[str, dict[int, Any]]] = {}
    for name in options.programs:
        tools = TOOLS if name in options.torch else TOOLS[:1]
        figures[name] = {
            tool: {steps: _run(tool, name, steps, options) for steps in SCENARIOS[name].steps} for tool in tools
        }
        command = " ".join(["python benchmarks/unrolled.py", *arguments])
        results = {"command": command, "machine": machine.describe(), "seconds": figures}
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    rows = []
    for name, by_tool in figures.items():
        for tool, by_steps in by_tool.items():
            for steps, found in by_steps.items():
                row = [name, tool, str(steps)]
                if isinstance(found, str):
                    rows.append([*row, found, "", ""])
                    continue
                ratio = found["eager"] / found["call"]
                rows.append([*row, f"{found['compile']:.1f}", f"{found['eager'] * 1e3:.1f}", f"{ratio:.1f}"])
    print(markdown(["program", "tool", "steps", "compile s", "eager ms", "times as fast as eager"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
