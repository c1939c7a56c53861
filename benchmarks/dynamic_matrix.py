"""Numbers of compilations over ranges of batch sizes and sequence lengths, of Treadle and torch.compile.

    python benchmarks/dynamic_matrix.py [--models bert gpt2 ...] [--output FILE]   to benchmarks/results/dynamic_matrix.json

Every model runs on all batch sizes and sequence lengths in an order drawn once (images: batch sizes only). Each result is compared with
eager's. The small functions run on short sequences of sizes. The count is that of graphs
given to the backend. torch.compile uses the backend `eager`, which does not change the count. Each engine has a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import zoo  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "dynamic_matrix.json"
BATCHES = (1, 2, 3, 4, 7, 16)
LENGTHS = (1, 8, 17, 64, 100)
MODELS = ("bert", "gpt2", "llama", "t5", "vit", "resnet18")
IMAGES = ("vit", "resnet18")
TOLERANCE = 1e-4  # of the largest element of a result; float32 on both sides

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: torch.relu(x) * 2 + 1,
    "softmax": lambda x: x.softmax(-1),
    "matmul": lambda x: x @ x.t(),
    "view": lambda x: x.view(x.shape[0], 2, 4).transpose(1, 2).reshape(x.shape[0], 8),
    "mean": lambda x: x - x.mean(0, keepdim=True),
    "branch on 1": lambda x: x * 2 if x.shape[0] == 1 else x * 3,
}
SEQUENCES = ((4, 5, 6), (4, 5, 6, 1), (1, 4, 5), (4, 1, 5), (2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (4, 0, 5))
INTEGERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "scale by n": lambda x, n: x * n,
    "first n": lambda x, n: x[:n].sum(0),
}
# Inputs of other layouts, all sizes of which change at once: makers of a tensor for the n-th call.
LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "contiguous": lambda n: torch.randn(n, n + 3, 2 * n),
    "transposed": lambda n: torch.randn(n + 3, n, 2 * n).transpose(0, 1),
    "columns": lambda n: torch.randn(n, n + 3, 2 * n + 5)[..., : 2 * n],
    "every other row": lambda n: torch.randn(n, 2 * n + 6, 2 * n)[:, ::2],
    "expanded": lambda n: torch.randn(1, n + 3, 2 * n).expand(n, n + 3, 2 * n),
    "channels last": lambda n: torch.randn(n, 4, n + 3, 2 * n).to(memory_format=torch.channels_last),
}


class Engine:
    """One way to compile, and the number of graphs that it has given to its backend."""

    def __init__(self, name: str):
        self.name = name
        self.graphs = 0

    def compile(self, function: Any) -> Any:
        """Compile a function after dropping everything that was compiled before."""
        self.graphs = 0
        if self.name == "treadle":
            import treadle

            treadle.reset()
            treadle.config.raise_internal_errors = True
            return treadle.compile(function)
        torch.compiler.reset()
        return torch.compile(function, backend=self._count)

    def _count(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.graphs += 1
        return gm.forward

    @property
    def count(self) -> int:
        """Graphs since `compile`."""
        if self.name == "treadle":
            import treadle

            return treadle.stats().graphs
        return self.graphs


def inputs_of(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Keyword arguments of a model: the zoo's, cut to `length` (token ids, all alike on both sides of T5)."""
    inputs = zoo.SCENARIOS[name].inputs(batch)
    if name in IMAGES:
        return inputs
    vocabulary = int(max(int(t.max()) for t in inputs.values())) + 1
    return {key: torch.randint(vocabulary, (batch, length)) for key in inputs}


def deviation(expected: Any, found: Any) -> float:
    """Largest difference, relative to the largest element of its tensor; infinite when shapes, strides or dtypes differ."""
    worst = 0.0
    for want, have in zip(zoo.tensors_of(expected), zoo.tensors_of(found), strict=True):
        if (want.shape, want.stride(), want.dtype) != (have.shape, have.stride(), have.dtype):
            return float("inf")
        scale = want.abs().max().item() or 1.0
        worst = max(worst, (want - have).abs().max().item() / scale)
    return worst


def run_model(engine: Engine, name: str) -> dict[str, Any]:
    """Run a model over all shapes. Returns the number of compilations, the shape before each, and the largest deviation from eager."""
    model = zoo.SCENARIOS[name].build()
    shapes = list(itertools.product(BATCHES, (0,) if name in IMAGES else LENGTHS))
    random.Random(0).shuffle(shapes)
    compiled = engine.compile(model)
    worst, compiles_at = 0.0, []
    with torch.no_grad():
        for batch, length in shapes:
            inputs = inputs_of(name, batch, length)
            before = engine.count
            found = compiled(**inputs)
            if engine.count > before:
                compiles_at.append([batch, length])
            worst = max(worst, deviation(model(**inputs), found))
    return {"compilations": engine.count, "at": compiles_at, "shapes": len(shapes), "deviation": worst}


def run_functions(engine: Engine) -> dict[str, dict[str, int]]:
    """Compilations of the small functions, by sequence of sizes. Raises AssertionError when a result is wrong."""
    table: dict[str, dict[str, int]] = {}
    for name, function in FUNCTIONS.items():
        for sequence in SEQUENCES:
            compiled = engine.compile(function)
            for size in sequence:
                x = torch.randn(size, 8)
                torch.testing.assert_close(compiled(x), function(x))
            table.setdefault(name, {})[" ".join(map(str, sequence))] = engine.count
    for layout, make in LAYOUTS.items():
        compiled = engine.compile(FUNCTIONS["softmax"])
        for n in (4, 5, 7, 6, 9):
            x = make(n)
            torch.testing.assert_close(compiled(x), FUNCTIONS["softmax"](x))
        table[f"softmax, {layout}"] = {"4 5 7 6 9": engine.count}
    for name, of_integer in INTEGERS.items():
        compiled = engine.compile(of_integer)
        for n in range(2, 12):
            x = torch.randn(16, 4)
            torch.testing.assert_close(compiled(x, n), of_integer(x, n))
        table[name] = {"n = 2 ... 11": engine.count}
    return table


def run_engine(name: str, models: list[str]) -> dict[str, Any]:
    """Everything for one engine, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    engine = Engine(name)
    with torch.no_grad():
        functions = run_functions(engine)
    found: dict[str, Any] = {"functions": functions, "models": {}}
    for model in models:
        found["models"][model] = run_model(engine, model)
        print(f"{name:8} {model:10} {found['models'][model]}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    """0 when every result of treadle is right, 1 otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--engine", choices=("treadle", "torch"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(json.dumps(run_engine(options.engine, options.models)))
        return 0
    results: dict[str, Any] = {"machine": machine.describe()}
    for engine in ("treadle", "torch"):
        command = [sys.executable, __file__, "--engine", engine, "--models", *options.models]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
        results[engine] = json.loads(done.stdout.splitlines()[-1])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    for name in options.models:
        ours, theirs = results["treadle"]["models"][name], results["torch"]["models"][name]
        print(
            f"{name:10} {ours['compilations']:2} compilations (torch.compile {theirs['compilations']}), {ours['deviation']:.0e}"
        )
    for name, row in results["treadle"]["functions"].items():
        print(f"{name:12}", *(f"[{s}] {n}/{results['torch']['functions'][name][s]}" for s, n in row.items()))
    return int(any(row["deviation"] > TOLERANCE for row in results["treadle"]["models"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
