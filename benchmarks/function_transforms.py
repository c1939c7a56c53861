"""Transforms of `torch.func`: eager, torch.compile, Treadle.

    python benchmarks/function_transforms.py                            everything, to benchmarks/results/function_transforms.json
    python benchmarks/function_transforms.py --cases hessian

call     seconds of one call; all variants in one process on one thread, calls interleaved, medians
compile  seconds of the first call, with an empty cache directory; None where the compiler raised
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, stack_module_state, vmap
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import compare  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
from markdown_table import markdown, number, times  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "function_transforms.json"
SECONDS = 4.0

Call = Callable[[], Any]
Program = Callable[..., Any]


def perceptron(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def the_hessian() -> tuple[Program, tuple[Any, ...]]:
    net = perceptron(16, 32, 1)
    return (lambda x: hessian(lambda a: net(a).sum())(x)), (torch.randn(16),)


def hessians_of_a_batch() -> tuple[Program, tuple[Any, ...]]:
    net = perceptron(8, 32, 1)
    return (lambda x: vmap(hessian(lambda a: net(a).sum()))(x)), (torch.randn(32, 8),)


def samples_of_a_perceptron() -> tuple[Program, tuple[Any, ...]]:
    return _per_sample(perceptron(16, 64, 64, 10), torch.randn(32, 16))


def samples_of_a_convolutional_net() -> tuple[Program, tuple[Any, ...]]:
    convolutions = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AvgPool2d(4)]
    return _per_sample(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(72, 10)), torch.randn(16, 1, 16, 16))


def _per_sample(net: nn.Module, x: torch.Tensor) -> tuple[Program, tuple[Any, ...]]:
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(net, params, (x.unsqueeze(0),)), y.unsqueeze(0))

    def program(params: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)

    return program, (params, x, torch.randint(10, (len(x),)))


def neural_tangent_kernel() -> tuple[Program, tuple[Any, ...]]:
    net = perceptron(8, 32, 2)
    params = {name: p.detach() for name, p in net.named_parameters()}

    def single(params: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, params, (x.unsqueeze(0),)).squeeze(0)

    def program(params: Any, x: torch.Tensor) -> torch.Tensor:
        jacobians = [j.flatten(2) for j in vmap(jacrev(single), (None, 0))(params, x).values()]
        return torch.stack([torch.einsum("Naf,Mbf->NMab", j, j) for j in jacobians]).sum(0)

    return program, (params, torch.randn(16, 8))


def ensemble() -> tuple[Program, tuple[Any, ...]]:
    models = [perceptron(16, 64, 10) for _ in range(8)]
    params, buffers = stack_module_state(models)  # type: ignore[arg-type]

    def program(params: Any, x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda p: functional_call(models[0], (p, buffers), (x,)))(params)

    return program, ({name: p.detach() for name, p in params.items()}, torch.randn(32, 16))


CASES: dict[str, Callable[[], tuple[Program, tuple[Any, ...]]]] = {
    "hessian": the_hessian,
    "hessians of a batch": hessians_of_a_batch,
    "per-sample gradients, perceptron": samples_of_a_perceptron,
    "per-sample gradients, convolutions": samples_of_a_convolutional_net,
    "neural tangent kernel": neural_tangent_kernel,
    "ensemble": ensemble,
}


def compilers() -> dict[str, Callable[[Program], Program]]:
    import treadle

    return {"eager": lambda program: program, "torch.compile": torch.compile, "treadle": treadle.compile}


def measure_case(case: str) -> dict[str, dict[str, float | None]]:
    torch.manual_seed(0)
    program, inputs = CASES[case]()
    figures: dict[str, dict[str, float | None]] = {}
    calls: dict[str, Call] = {}
    for variant, compiler in compilers().items():
        compiled = compiler(program)
        start = time.perf_counter()
        try:
            compiled(*inputs)
        except Exception as error:  # what a compiler cannot do is a figure, too
            print(f"{case}, {variant}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            figures[variant] = {"compile": None, "call": None}
            continue
        figures[variant] = {"compile": time.perf_counter() - start}
        for _ in range(3):
            compiled(*inputs)
        calls[variant] = lambda compiled=compiled: compiled(*inputs)
    for variant, seconds in measure.interleaved_medians(calls, SECONDS, least=8).items():
        figures[variant]["call"] = seconds
    return figures


def table(cases: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> str:
    variants = ("eager", "torch.compile", "treadle")
    headings = [
        "µs per call",
        *variants,
        "faster than eager",
        "faster than torch.compile",
        "compile, s",
        "torch.compile's",
    ]
    rows = []
    for case, found in cases.items():
        own = found["treadle"]["call"]
        ratios = [
            times(seconds / own) if own and (seconds := found[v]["call"]) else "–" for v in ("eager", "torch.compile")
        ]
        seconds_to_compile = [number(found[v]["compile"], 1) for v in ("treadle", "torch.compile")]
        rows.append([case, *[number(found[v]["call"], 0, 1e6) for v in variants], *ratios, *seconds_to_compile])
    return markdown(headings, rows)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "command": " ".join(["python benchmarks/function_transforms.py", *arguments]),
        "machine": machine.describe(),
        "cases": {},
    }
    with tempfile.TemporaryDirectory(prefix="treadle-transforms-") as cache:
        os.environ.update(compare.worker_environment(Path(cache)))
        for case in options.cases:
            results["cases"][case] = measure_case(case)
            print(f"{case}: {results['cases'][case]}", file=sys.stderr, flush=True)
            options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(results["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
