"""Measure one scenario of the zoo in this process and print the figures as one line of JSON (a worker of compare.py).

`python tools/measure.py first <scenario> <variant>` measures the seconds to the first result, graphs, breaks and peak memory. The
clock starts when torch and the model's library are imported and the model is built, and the compiler is not imported. Whether the
start is cold or warm depends on the cache directories in the environment.
`python tools/measure.py steady <scenario> <variant>...` compiles all variants in this process, checks each against a float64 run, and
times them interleaved. It uses one thread, because other processes disturb threads on a shared machine.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

import zoo

# An output agrees with eager if its error against float64 is at most this many times eager's own.
ALLOWED_ERROR_RATIO = 10.0

Forward = Callable[..., Any]


# ------------------------------------------------------------------------------------------------ variants


def _eager(model: torch.nn.Module) -> Forward:
    return model


def _torch_compile(model: torch.nn.Module) -> Forward:
    return torch.compile(model)


def _treadle(model: torch.nn.Module) -> Forward:
    import treadle

    return treadle.compile(model)


def _no_graphs() -> tuple[int, list[str]]:
    return 0, []


def _torch_compile_graphs() -> tuple[int, list[str]]:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], sorted(counters["graph_break"])


def _treadle_graphs() -> tuple[int, list[str]]:
    import treadle

    stats = treadle.stats()
    breaks = [f"{each.code} at {each.where}: {each.reason}" for each in stats.breaks]
    # A traced graph that runs in eager counts as a break.
    return stats.graphs, breaks + [f"runs in eager: {each.reason}" for each in stats.eager_graphs]


COMPILERS: Mapping[str, Callable[[torch.nn.Module], Forward]] = {
    "eager": _eager,
    "torch.compile": _torch_compile,
    "treadle": _treadle,
}

# variant -> (number of graphs, reasons of the breaks) of everything compiled so far in this process
GRAPHS: Mapping[str, Callable[[], tuple[int, list[str]]]] = {
    "eager": _no_graphs,
    "torch.compile": _torch_compile_graphs,
    "treadle": _treadle_graphs,
}


# ------------------------------------------------------------------------------------------------ figures


def error_ratio(
    result: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]
) -> float:
    """The largest ratio, over all outputs, of max |result - reference| to max |eager - reference|.

    `reference` is the float64 run. Eager's error counts as at least one unit in the last place of the output's largest element, so
    that the ratio stays finite where eager is exact. The ratio is infinite if results differ from eager's in number, shape or dtype,
    or have a NaN where the reference has none.
    """
    if [(t.shape, t.dtype) for t in result] != [(t.shape, t.dtype) for t in eager]:
        return float("inf")
    worst = 0.0
    for mine, theirs, exact in zip(result, eager, reference, strict=True):
        if mine.numel() == 0:
            continue
        wide = exact.double()
        floor = torch.finfo(theirs.dtype).eps if theirs.is_floating_point() else 1.0
        own = max((theirs.double() - wide).abs().max().item(), floor * wide.abs().max().item(), 1e-300)
        error = (mine.double() - wide).abs().max().item()
        worst = max(worst, error / own if error == error else float("inf"))
    return worst


def interleaved_medians(functions: Mapping[str, Callable[[], object]], seconds: float, least: int) -> dict[str, float]:
    """Median seconds per call of each function. All are called once per round, in random order, for `seconds` in total.

    Every function has the same number of measured calls, at least `least`, after three calls that are not measured.
    """
    for function in functions.values():
        for _ in range(3):
            function()
    samples: dict[str, list[float]] = {name: [] for name in functions}
    order, end = list(functions), time.perf_counter() + seconds
    shuffle = random.Random(0).shuffle
    while time.perf_counter() < end or len(samples[order[0]]) < least:
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            functions[name]()
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in samples.items()}


def peak_mebibytes() -> float:
    """The largest resident size of this process so far. Linux gives ru_maxrss in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ------------------------------------------------------------------------------------------------ the two measurements


@torch.no_grad()
def first_result(scenario: zoo.Scenario, variant: str) -> dict[str, Any]:
    model, inputs = scenario.build(), scenario.inputs()
    before = peak_mebibytes()
    start = time.perf_counter()
    COMPILERS[variant](model)(**inputs)
    seconds = time.perf_counter() - start
    graphs, breaks = GRAPHS[variant]()
    return {
        "seconds": seconds,
        "graphs": graphs,
        "breaks": breaks,
        "peak_mib": peak_mebibytes(),
        "peak_mib_before": before,
    }


@torch.no_grad()
def steady_state(scenario: zoo.Scenario, variants: Sequence[str], seconds: float = 8.0) -> dict[str, Any]:
    model, inputs = scenario.build(), scenario.inputs()
    reference = zoo.tensors_of(scenario.build().double()(**zoo.in_float64(inputs)))
    eager = zoo.tensors_of(model(**inputs))
    # Every variant has a model of its own, so that none changes the model of another.
    compiled = {variant: COMPILERS[variant](scenario.build()) for variant in variants}
    ratios = {}
    for variant, forward in compiled.items():
        results = [zoo.tensors_of(forward(**inputs)) for _ in range(2)]
        ratios[variant] = max(error_ratio(result, eager, reference) for result in results)
    calls = {variant: _call(forward, inputs) for variant, forward in compiled.items()}
    medians = interleaved_medians(calls, seconds, least=15)
    return {variant: {"seconds": medians[variant], "error_ratio": ratios[variant]} for variant in variants}


def _call(forward: Forward, inputs: zoo.Inputs) -> Callable[[], object]:
    return lambda: forward(**inputs)


def main(arguments: Sequence[str]) -> int:
    torch.set_num_threads(1)
    what, name, *variants = arguments
    scenario = zoo.SCENARIOS[name]
    figures = first_result(scenario, variants[0]) if what == "first" else steady_state(scenario, variants)
    print(json.dumps(figures))
    return 0


def lines_of_json(text: str) -> Iterator[Any]:
    """The JSON objects in a worker's output. Other lines come from libraries."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
