"""What each optimisation is worth: Treadle's speed-up over eager with everything, and with one thing left out.

    python benchmarks/ablation.py                                    the twelve models and the kernels (about 9 minutes)
    python benchmarks/ablation.py --models bert resnet18 --kernels   two models, no kernels (about 1 minute)
    python benchmarks/ablation.py --models --without fusion reuse    the kernels, two rows (about 1.5 minutes)

fusion         every loop is a kernel of its own
inlining       every value is stored, also those that are cheaper to compute again; the kernels they are fused into keep them in registers
unfused        neither fusion nor inlining, each of which makes up for the other one: every operator is a kernel of its own
weights        no packed weights, no folded batch norms
reuse          every temporary has memory of its own
channels-last  convolutions as the program has them, neither channels-last nor packed
hot-sizes      no kernels for frequent sizes; compiled with `dynamic=True`, as is the row `dynamic` that it compares with

Medians of interleaved calls on one thread; to benchmarks/results/ablation.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import kernels
from kernel_cases import KERNELS, copied

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import treadle  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown, times  # noqa: E402
from treadle_codegen.schedule.memory import ArenaPlan, Lifetime, plan_arena  # noqa: E402
from treadle_codegen.targets import table  # noqa: E402
from treadle_codegen.targets.cpp.pack_convolution import pack_convolutions  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "ablation.json"
NOTHING: Mapping[str, Any] = {}

Build = Callable[[Mapping[str, Any]], kernels.Call]


@contextlib.contextmanager
def _target(**changes: Any) -> Iterator[None]:
    """The C++ target with other facts."""
    with mock.patch.dict(table.TARGETS, {"cpp": replace(table.TARGETS["cpp"], **changes)}):
        yield


def _without_inlining() -> Any:
    return _target(costs=replace(table.TARGETS["cpp"].costs, recompute=0, max_expression=1, max_unrolled=0))


def _without_channels_last() -> Any:
    own = table.TARGETS["cpp"].rewrites()
    fewer = own._replace(static=tuple([r for r in own.static if r is not pack_convolutions]))
    return _target(rewrites=lambda: fewer)


def _apart(lifetimes: Sequence[Lifetime], alignment: int) -> ArenaPlan:
    """A memory plan in which all live for ever."""
    end = max((b.last for b in lifetimes), default=0)
    return plan_arena([replace(b, first=0, last=end) for b in lifetimes], alignment)


def _without_reuse() -> Any:
    return mock.patch("treadle_codegen.host.memory_planner.plan_arena", _apart)


# name -> (what is changed while compiling, arguments of treadle.compile)
ROWS: dict[str, tuple[Callable[[], Any], Mapping[str, Any]]] = {
    "everything": (contextlib.nullcontext, NOTHING),
    "fusion": (contextlib.nullcontext, {"options": {"max_fusion_members": 1}}),
    "inlining": (_without_inlining, NOTHING),
    "unfused": (_without_inlining, {"options": {"max_fusion_members": 1}}),
    "weights": (contextlib.nullcontext, {"options": {"pack_weights": False}}),
    "reuse": (_without_reuse, NOTHING),
    "channels-last": (_without_channels_last, NOTHING),
    "dynamic": (contextlib.nullcontext, {"dynamic": True}),
    "hot-sizes": (contextlib.nullcontext, {"dynamic": True, "options": {"specialised_shapes": 0}}),
}
_WARM_UP = 40  # calls, so that kernels for frequent sizes are there


def kernel_builder(name: str) -> tuple[kernels.Call, Build]:
    """What calls a kernel in eager, and what compiles it."""
    kernel = KERNELS[name]
    given = kernel.arguments(kernels.maker("cache", torch.float32, "cpu"))

    def build(how: Mapping[str, Any]) -> kernels.Call:
        compiled, arguments = treadle.compile(kernel.compute, **how), copied(given)
        return lambda: compiled(*arguments)

    return lambda: kernel.compute(*given), build


def model_builder(name: str) -> tuple[kernels.Call, Build]:
    """What calls a model in eager, and what compiles it."""
    scenario = zoo.SCENARIOS[name]
    model, inputs = scenario.build(), scenario.inputs()

    def build(how: Mapping[str, Any]) -> kernels.Call:
        compiled = treadle.compile(model, **how)
        return lambda: compiled(**inputs)

    return lambda: model(**inputs), build


def measure(eager: kernels.Call, build: Build, rows: Sequence[str], options: argparse.Namespace) -> dict[str, float]:
    """Speed-up over eager by row."""
    calls: dict[str, kernels.Call] = {"eager": eager}
    with torch.no_grad():
        for row in rows:
            change, how = ROWS[row]
            with change():
                calls[row] = build(how)
                for _ in range(_WARM_UP if how.get("dynamic") else 2):
                    calls[row]()
        taken = kernels.seconds_of(calls, "cpu", options.seconds, kernels.CLOCKS[options.clock])
    return {row: taken["eager"] / taken[row] for row in rows}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="*", choices=list(zoo.SCENARIOS), default=list(zoo.SCENARIOS), metavar="MODEL"
    )
    parser.add_argument("--kernels", nargs="*", choices=list(KERNELS), default=list(KERNELS), metavar="KERNEL")
    parser.add_argument("--without", nargs="+", choices=list(ROWS)[1:], default=list(ROWS)[1:])
    parser.add_argument("--seconds", type=float, default=0.2, help="measuring time of each row of each program")
    parser.add_argument("--clock", choices=list(kernels.CLOCKS), default="wall")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    return parser.parse_args(arguments)


def summary(results: Mapping[str, Mapping[str, Mapping[str, float]]], rows: Sequence[str]) -> str:
    """Geometric means over models and over kernels, as Markdown."""
    lines = []
    for row in rows:
        cells = []
        for kind in ("models", "kernels"):
            found = [math.log(figures[row]) for figures in results[kind].values()]
            cells.append(times(math.exp(statistics.fmean(found)) if found else None))
        lines.append([row if row in ("everything", "dynamic", "unfused") else f"without {row}", *cells])
    return markdown(["over eager", "models", "kernels in cache"], lines)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    rows = ["everything", *options.without]
    results: dict[str, dict[str, dict[str, float]]] = {"models": {}, "kernels": {}}
    head = {"command": " ".join(["python benchmarks/ablation.py", *arguments]), "machine": machine.describe()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for kind, names, builder in (
        ("kernels", options.kernels, kernel_builder),
        ("models", options.models, model_builder),
    ):
        for name in names:
            print(name, file=sys.stderr, flush=True)
            results[kind][name] = measure(*builder(name), rows, options)
            # After every program, so that an interrupted run leaves results.
            options.output.write_text(json.dumps({**head, **results}, indent=1) + "\n", encoding="utf-8")
    print(summary(results, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
