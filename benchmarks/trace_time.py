"""How long tracing takes, without any compiler behind it: Treadle's tracer and TorchDynamo, in fresh processes.

    python benchmarks/trace_time.py                  to benchmarks/results/trace_time.json

A process compiles a small function first, so that imports and what is set up once are left out. Then it calls the model twice: the first
call traces, and both run the traced graph as it is. Their difference is the time of the trace, with guards and replacement code. Seconds
of processor time of the process, smallest of the runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import measure  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "trace_time.json"
TOOLS = ("treadle", "torch.compile")


class Layers(nn.Sequential):
    """Two hundred layers of eight."""

    def __init__(self) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(200)))


def _of_zoo(name: str) -> Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    return lambda: (zoo.SCENARIOS[name].build(), (), zoo.SCENARIOS[name].inputs())


MODELS: Mapping[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    **{name: _of_zoo(name) for name in ("bert", "resnet18", "t5")},
    "mlp of 200 layers": lambda: (Layers().eval(), (torch.randn(4, 8),), {}),
}


def as_it_is(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that runs the graph by its own code."""
    return gm.forward


def seconds_of(tool: str, name: str) -> float:
    """The time of one trace, in this process."""
    torch.set_num_threads(1)
    compile_it: Callable[..., Any] = torch.compile
    if tool == "treadle":
        import treadle

        compile_it = treadle.compile
    model, args, kwargs = MODELS[name]()
    with torch.no_grad():
        model(*args, **kwargs)
        compile_it(lambda x: x.relu() + 1, backend=as_it_is)(torch.ones(2, 2))
        fast = compile_it(model, backend=as_it_is)
        times = []
        for _ in range(2):
            start = time.process_time()
            fast(*args, **kwargs)
            times.append(time.process_time() - start)
    return times[0] - times[1]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--runs", type=int, default=3, help="processes for each model and tool")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    parser.add_argument("--one", nargs=2, metavar=("TOOL", "MODEL"), help="in this process, as a line of JSON")
    options = parser.parse_args(arguments)
    if options.one:
        tool, model = options.one
        print(json.dumps({"seconds": seconds_of(tool, model)}))
        return 0
    seconds: dict[str, dict[str, float]] = {}
    for name in options.models:
        runs: dict[str, list[float]] = {tool: [] for tool in TOOLS}
        for _ in range(options.runs):
            for tool in TOOLS:
                command = [sys.executable, __file__, "--one", tool, name]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs[tool].append(list(measure.lines_of_json(done.stdout))[-1]["seconds"])
        seconds[name] = {tool: min(found) for tool, found in runs.items()}
    command = " ".join(["python benchmarks/trace_time.py", *arguments])
    results = {"command": command, "machine": machine.describe(), "seconds": seconds}
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    rows = [
        [
            name,
            f"{found['treadle']:.2f}",
            f"{found['torch.compile']:.2f}",
            f"{found['torch.compile'] / found['treadle']:.1f}",
        ]
        for name, found in seconds.items()
    ]
    print(markdown(["seconds", "Treadle", "torch.compile", "times as long"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
