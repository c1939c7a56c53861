"""Call overhead: nanoseconds per call of `x + 1` on 8 floats, in eager and through each compiler.

    python benchmarks/call_overhead.py [--output FILE]      to benchmarks/results/call_overhead.json

All variants are compiled in this process and called in turn in blocks of 2,000 calls. The figure is the median over blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import compare  # noqa: E402
import machine  # noqa: E402
import readme_table  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "call_overhead.json"
CALLS = 2_000
ROUNDS = 51

Function = Callable[[torch.Tensor], torch.Tensor]


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def fresh() -> Function:
    """A copy of the function with a code object of its own, because compilers keep their caches on the code object."""
    return types.FunctionType(add_one.__code__.replace(), add_one.__globals__, "add_one")


def treadle_compiled() -> Function:
    import treadle

    return treadle.compile(fresh())


# Treadle first: the others' frame hook is not yet in the process when it compiles.
VARIANTS: Mapping[str, Callable[[], Function]] = {
    "treadle": treadle_compiled,
    "eager": fresh,
    "torch.compile": lambda: torch.compile(fresh()),
    "torch.compile(backend='eager')": lambda: torch.compile(fresh(), backend="eager"),
}


def nanoseconds_per_call(function: Function, x: torch.Tensor) -> float:
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        function(x)
    return (time.perf_counter_ns() - start) / CALLS


def measure(variants: Sequence[str]) -> dict[str, float]:
    """Median nanoseconds per call of each variant, after a check of its result."""
    x = torch.arange(8.0)
    functions = {}
    for name in variants:
        functions[name] = VARIANTS[name]()
        for _ in range(3):
            torch.testing.assert_close(functions[name](x), torch.arange(1.0, 9.0))
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            samples[name].append(nanoseconds_per_call(function, x))
    return {name: statistics.median(values) for name, values in samples.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="treadle-overhead-") as cache:
        os.environ.update(compare.worker_environment(Path(cache)))
        nanoseconds = measure(options.variants)
    results = {
        "command": " ".join(["python benchmarks/call_overhead.py", *arguments]),
        "machine": machine.describe(),
        "nanoseconds": nanoseconds,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(readme_table.overhead_table(nanoseconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
