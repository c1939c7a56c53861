"""Training steps of the twelve models: eager, torch.compile and Treadle side by side.

    python benchmarks/training.py                                  everything, to benchmarks/results/training.json
    python benchmarks/training.py --models bert gpt2 --variants eager treadle

step   seconds for forward, loss and backward in training mode, dropout and batch norm included; all variants in one process, calls
       interleaved, medians
first  seconds of the first step of a fresh process with empty caches, from after `import torch` and building the model
warm   the same in a second process, which finds the caches that the first has left
saved  MiB of distinct storages that autograd saves between forward and backward, parameters left out (`saved_tensors_hooks`)
error  the largest |gradient - float64's| of a parameter over eager's own, dropout turned off; the median of three inputs, because an input
       that puts one element of a ReLU within rounding of 0 gives it one gradient or another. Gradients that are 0 but for rounding do not
       count; they did in what was measured before 2026-11-29
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import compare  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown, number, times  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "training.json"
VARIANTS = ("eager", "torch.compile", "treadle")

Step = Callable[[], torch.Tensor]


def training_step(model: torch.nn.Module, forward: Callable[..., Any], inputs: Mapping[str, Any]) -> Step:
    """Forward, the mean square of the first floating-point output, backward."""

    def step() -> torch.Tensor:
        for parameter in model.parameters():
            parameter.grad = None
        outputs = [t for t in zoo.tensors_of(forward(**inputs)) if t.is_floating_point()]
        loss = (
            outputs[0].float().square().mean() if outputs[0].dtype is not torch.float64 else outputs[0].square().mean()
        )
        loss.backward()
        return loss

    return step


def saved_mebibytes(model: torch.nn.Module, step: Step) -> float:
    """Distinct storages that one step saves for backward, without those of parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    kept: list[torch.Tensor] = []  # so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept.append(tensor.detach())
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(sizes.values()) / 2**20


# Below this, a float64 gradient is zero but for rounding (the bias of keys under softmax, biases in front of a norm): every digit of a
# float32 one is an error, and a ratio of two says nothing.
ALL_ROUNDING = 1e-15


def gradient_error(scenario: zoo.Scenario, variant: str) -> float:
    """The largest error of a gradient against float64 over eager's own, of one step without dropout."""
    return statistics.median(_gradient_error(scenario, variant, scale) for scale in (1.0, 0.9, 1.1))


def _gradient_error(scenario: zoo.Scenario, variant: str, scale: float) -> float:
    found = []
    for compiler, in_double in (
        (measure.COMPILERS["eager"], True),
        (measure.COMPILERS["eager"], False),
        (measure.COMPILERS[variant], False),
    ):
        torch.manual_seed(0)
        model = zoo.without_dropout(scenario.build().train())
        inputs = {k: v * scale if v.is_floating_point() else v for k, v in scenario.inputs().items()}
        if in_double:
            model, inputs = model.double(), zoo.in_float64(inputs)
        training_step(model, compiler(model), inputs)()
        found.append([None if p.grad is None else p.grad.double() for p in model.parameters()])
    worst = 0.0
    for exact, theirs, mine in zip(*found, strict=True):
        if exact is None or theirs is None or mine is None or exact.abs().max() < ALL_ROUNDING:
            continue
        floor = 1.2e-7 * max(exact.abs().max().item(), 1e-6)
        own = max((theirs - exact).abs().max().item(), floor)
        worst = max(worst, (mine - exact).abs().max().item() / own)
    return worst


def steady(name: str, variants: Sequence[str]) -> dict[str, dict[str, float]]:
    scenario = zoo.SCENARIOS[name]
    steps: dict[str, Step] = {}
    figures: dict[str, dict[str, float]] = {}
    for variant in variants:
        torch.manual_seed(0)
        model = scenario.build().train()
        steps[variant] = training_step(model, measure.COMPILERS[variant](model), scenario.inputs())
        steps[variant]()
        figures[variant] = {"saved_mib": saved_mebibytes(model, steps[variant])}
    for variant, seconds in measure.interleaved_medians(steps, 12.0, least=8).items():
        figures[variant]["step"] = seconds
    for variant in variants:
        if variant == "treadle":
            figures[variant]["error"] = gradient_error(scenario, variant)
    return figures


def first(name: str, variant: str) -> dict[str, float]:
    scenario = zoo.SCENARIOS[name]
    model, inputs = scenario.build().train(), scenario.inputs()
    start = time.perf_counter()
    training_step(model, measure.COMPILERS[variant](model), inputs)()
    return {"first": time.perf_counter() - start}


def worker(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    what, name, *variants = arguments
    print(json.dumps(steady(name, variants) if what == "steady" else first(name, variants[0])))


def run_worker(arguments: Sequence[str], cache: Path) -> Any:
    command = [sys.executable, "-W", "ignore", __file__, "--worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=compare.worker_environment(cache), check=True)
    return list(measure.lines_of_json(done.stdout))[-1]


def measure_model(name: str, variants: Sequence[str]) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="treadle-training-") as cache:
        cold = {v: run_worker(["first", name, v], Path(cache))["first"] for v in variants}
        warm = {v: run_worker(["first", name, v], Path(cache))["first"] for v in variants}
        figures = run_worker(["steady", name, *variants], Path(cache))
    return {v: {**figures[v], "first": cold[v], "warm": warm[v]} for v in variants}


def table(models: Mapping[str, Mapping[str, Mapping[str, float]]], variants: Sequence[str]) -> str:
    """Milliseconds per step, and Treadle's ratios."""
    others = [variant for variant in variants if variant != "treadle"]
    headings = [
        "ms per step",
        *variants,
        *(f"faster than {v}" for v in others),
        *(f"first step, s: {v}" for v in variants),
        *(f"first step warm, s: {v}" for v in variants),
        *(f"saved MiB: {v}" for v in variants),
        "error / eager's",
    ]
    rows = []
    for name, found in models.items():
        rows.append(
            [
                name,
                *(number(found[v]["step"], 1, 1e3) for v in variants),
                *(times(found[v]["step"] / found["treadle"]["step"]) for v in others),
                *(number(found[v]["first"], 2) for v in variants),
                *(number(found[v]["warm"], 2) for v in variants),
                *(number(found[v]["saved_mib"], 1) for v in variants),
                times(found["treadle"].get("error")),
            ]
        )

    def mean(figure: str, variant: str) -> str:
        return times(compare.geometric_mean(m[variant][figure] / m["treadle"][figure] for m in models.values()))

    rows.append(
        [
            "geometric mean",
            *[""] * len(variants),
            *(mean("step", v) for v in others),
            *(mean(figure, v) if v != "treadle" else "" for figure in ("first", "warm", "saved_mib") for v in variants),
            "",
        ]
    )
    return markdown(headings, rows)


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--worker"]:
        worker(arguments[1:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=list(zoo.SCENARIOS), default=list(zoo.SCENARIOS), metavar="MODEL"
    )
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    compare.write_bytecode()
    results: dict[str, Any] = {
        "command": " ".join(["python benchmarks/training.py", *arguments]),
        "machine": machine.describe(),
        "models": {},
    }
    for name in options.models:
        results["models"][name] = measure_model(name, options.variants)
        print(f"{name}: {results['models'][name]}", file=sys.stderr, flush=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results["models"], options.variants))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
