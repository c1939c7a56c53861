"""What guards cost as a model gets deeper: microseconds per call of a compiled model whose graph does nothing.

    python benchmarks/guards.py [--layers 1 10 ...] [--variants ...] [--output FILE]      to benchmarks/results/guards.json

The model is `layers` times nn.Linear(4, 4), called without gradients on parameters that require them. The backend returns the input,
so what is left is the way into the compiled code: guards, mostly. Each variant and depth runs in a process of its own and reports
the fastest of many blocks of calls, since other programs on the machine only ever add time. `unchanged`: nothing happens between
calls; `optimiser`: each parameter is written in place before each call (that time is not counted); `counter`: a call counter in the
outermost module is increased before each call.
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

import compare  # noqa: E402
import machine  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "guards.json"
LAYERS = (1, 10, 50, 200, 1000)
VARIANTS = ("treadle", "torch.compile")
BLOCK_SECONDS = 0.001
SECONDS = 2.0


def passing_backend(graph_module: Any, example_inputs: Any) -> Callable[..., Any]:
    """A backend whose compiled graphs return their last argument that is an input: the model's."""

    def run(*args: Any) -> Any:
        return (args[-1],)

    return run


def compiled_model(variant: str, layers: int) -> tuple[torch.nn.Module, Callable[[torch.Tensor], Any]]:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers)))
    if variant == "treadle":
        import treadle

        return model, treadle.compile(model, backend=passing_backend)
    return model, torch.compile(model, backend=passing_backend)


def block(call: Callable[..., Any], x: torch.Tensor, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call(x)
    return (time.perf_counter() - start) / calls


def single_calls(call: Callable[..., Any], x: torch.Tensor, between: Callable[[], Any], calls: int) -> float:
    fastest = float("inf")
    for _ in range(calls):
        between()
        start = time.perf_counter()
        call(x)
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def write_parameters(model: torch.nn.Module) -> Callable[[], None]:
    parameters: list[torch.Tensor] = list(model.parameters())

    @torch.no_grad()
    def write() -> None:
        torch._foreach_add_(parameters, 1e-3)

    return write


def count_calls(model: Any) -> Callable[[], None]:
    model.n_calls = 0

    def count() -> None:
        model.n_calls += 1

    return count


@torch.no_grad()
def measure(variant: str, layers: int) -> dict[str, Any]:
    """Microseconds per call, seconds of the compilation, bytes of the entries."""
    torch.manual_seed(0)
    model, call = compiled_model(variant, layers)
    x = torch.randn(2, 4)
    start = time.perf_counter()
    call(x)
    compile_seconds = time.perf_counter() - start
    counter = count_calls(model)
    for _ in range(5):
        call(x)
    calls = max(10, int(BLOCK_SECONDS / block(call, x, 20)))
    blocks = [block(call, x, calls) for _ in range(max(20, int(SECONDS / BLOCK_SECONDS)))]
    found = {
        "unchanged": 1e6 * min(blocks),
        "optimiser": 1e6 * single_calls(call, x, write_parameters(model), 300),
        "counter": 1e6 * single_calls(call, x, counter, 1000),
        "compile_seconds": compile_seconds,
    }
    return found | ({"entry_bytes": entry_bytes()} if variant == "treadle" else {})


def entry_bytes() -> int:
    """Bytes of all guards and entries of this process."""
    import gc

    from treadle_frame import Entry, inspect

    return sum(inspect.memory(entry) for entry in gc.get_objects() if isinstance(entry, Entry))


def measure_apart(variant: str, layers: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--worker", variant, str(layers)]
    with tempfile.TemporaryDirectory(prefix="treadle-guards-") as cache:
        environment = os.environ | compare.worker_environment(Path(cache))
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", nargs="+", type=int, default=list(LAYERS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    parser.add_argument("--worker", nargs=2, metavar=("VARIANT", "LAYERS"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.worker:
        print(json.dumps(measure(options.worker[0], int(options.worker[1]))))
        return 0
    found: dict[str, dict[str, Any]] = {}
    for variant in options.variants:
        for layers in options.layers:
            result = found.setdefault(variant, {})[str(layers)] = measure_apart(variant, layers)
            print(
                f"{variant:14} {layers:5} layers: " + ", ".join(f"{k} {v:.1f}" for k, v in result.items()), flush=True
            )
    results = {
        "command": " ".join(["python benchmarks/guards.py", *arguments]),
        "machine": machine.describe(),
        "microseconds": found,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
