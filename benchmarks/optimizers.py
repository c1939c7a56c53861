"""Optimizer steps and whole training steps: eager (one tensor at a time, foreach, fused), torch.compile, Treadle.

    python benchmarks/optimizers.py                                everything, to benchmarks/results/optimizers.json
    python benchmarks/optimizers.py --cases adamw --tensors 20

step     seconds of one `optimizer.step()` over the parameters (matrices of 64 x 64 and vectors of 64, alternating), or of a whole step
         of a perceptron with that many layers (`whole`: zero_grad, forward, loss, backward, clipping, step); all variants in one process
         on one thread, calls interleaved, medians
compile  seconds of the first two steps (the first makes the state), with an empty cache directory
compiles how often treadle compiles in 20 steps with a scheduler of the learning rate: the most over loop and foreach, 10 and 100 parameters
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import compare  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
from optimizer_table import table  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "optimizers.json"
SECONDS = 4.0

Step = Callable[[], Any]
Optimizer = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda parameters, **how: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **how),
    "adam": lambda parameters, **how: torch.optim.Adam(parameters, lr=1e-3, **how),
    "adamw": lambda parameters, **how: torch.optim.AdamW(parameters, lr=1e-3, **how),
    "adagrad": lambda parameters, **how: torch.optim.Adagrad(parameters, lr=1e-3, **how),
    "rmsprop": lambda parameters, **how: torch.optim.RMSprop(parameters, lr=1e-3, **how),
    "adadelta": lambda parameters, **how: torch.optim.Adadelta(parameters, **how),
    "adamax": lambda parameters, **how: torch.optim.Adamax(parameters, lr=1e-3, **how),
    "nadam": lambda parameters, **how: torch.optim.NAdam(parameters, lr=1e-3, **how),
    "radam": lambda parameters, **how: torch.optim.RAdam(parameters, lr=1e-3, **how),
    "rprop": lambda parameters, **how: torch.optim.Rprop(parameters, lr=1e-3, **how),
    "asgd": lambda parameters, **how: torch.optim.ASGD(parameters, lr=1e-3, **how),
}
EAGER: dict[str, dict[str, bool]] = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
CASES = (*OPTIMIZERS, "whole")
STEPS = 20
COUNTS = (10, 100)


def compilers() -> dict[str, Callable[[Step], Step]]:
    """The compilers by variant; what they compile is a function without arguments."""
    import treadle

    return {"torch.compile": torch.compile, "treadle": treadle.compile}


def parameters_with_gradients(count: int) -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(64, 64) if k % 2 else torch.randn(64)) for k in range(count)]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def optimizer_step(make: Optimizer, count: int, **how: bool) -> Step:
    optimizer = make(parameters_with_gradients(count), **how)
    return lambda: optimizer.step()


def whole_step(count: int) -> Step:
    """A step of a perceptron with `count` parameters."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(count // 2):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    x, y = torch.randn(32, 64), torch.randint(0, 64, (32,))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def steps_of(case: str, count: int) -> dict[str, Step]:
    """The step of every variant that there is; the compiled ones are not compiled yet."""
    compiled = compilers()
    if case == "whole":
        return {"loop": whole_step(count), **{v: compiler(whole_step(count)) for v, compiler in compiled.items()}}
    make = OPTIMIZERS[case]
    found: dict[str, Step] = {}
    for variant, how in EAGER.items():
        try:
            found[variant] = optimizer_step(make, count, **how)
        except TypeError:  # no such implementation of this optimizer
            continue
    return {**found, **{v: compiler(optimizer_step(make, count)) for v, compiler in compiled.items()}}


def measure_case(case: str, count: int) -> dict[str, dict[str, float]]:
    steps = steps_of(case, count)
    figures: dict[str, dict[str, float]] = {}
    for variant, step in steps.items():
        start = time.perf_counter()
        step()
        step()
        figures[variant] = {"compile": time.perf_counter() - start}
        for _ in range(3):
            step()
    for variant, seconds in measure.interleaved_medians(steps, SECONDS, least=8).items():
        figures[variant]["step"] = seconds
    return figures


def most_compiles(case: str) -> int:
    """How often treadle compiles the steps of an optimizer, at most: see the module."""
    import treadle

    found = []
    for count, variant in itertools.product(COUNTS, ("loop", "foreach")):
        treadle.reset()
        optimizer = OPTIMIZERS[case](parameters_with_gradients(count), **EAGER[variant])
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        step = treadle.compile(lambda optimizer=optimizer: optimizer.step())
        for _ in range(STEPS):
            step()
            scheduler.step()
        found.append(treadle.stats().graphs)
    return max(found)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--tensors", type=int, default=100, help="number of parameters")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "command": " ".join(["python benchmarks/optimizers.py", *arguments]),
        "machine": machine.describe(),
        "load": [round(os.getloadavg()[0], 1)],  # of the last minute, at the beginning and behind each case
        "tensors": options.tensors,
        "cases": {},
    }
    with tempfile.TemporaryDirectory(prefix="treadle-optimizers-") as cache:
        os.environ.update(compare.worker_environment(Path(cache)))
        for case in options.cases:
            torch.compiler.reset()  # the steps of all cases are one code object, of which torch.compile keeps eight versions
            results["cases"][case] = measure_case(case, options.tensors)
            if case in OPTIMIZERS:
                results["cases"][case]["treadle"]["compiles"] = most_compiles(case)
            print(f"{case}: {results['cases'][case]}", file=sys.stderr, flush=True)
            results["load"].append(round(os.getloadavg()[0], 1))
            options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
