"""Backends of others under Treadle's tracer, and under TorchDynamo: the twelve models in inference.

    python benchmarks/other_backends.py                                 to benchmarks/results/other_backends.json
    python benchmarks/other_backends.py --backends openvino --models bert

Needs `pip install openvino`. Each model and backend runs in a process of its own, one thread, float32.

error    the largest difference from eager, in units of the largest output
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import measure  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "other_backends.json"
BACKENDS = ("openvino", "aot_eager", "ts", "inductor")
TRACERS = ("treadle", "torch.compile")
# OpenVINO computes in bfloat16 where the processor does, unless told not to.
OPTIONS: dict[str, dict[str, Any]] = {"openvino": {"config": {"INFERENCE_PRECISION_HINT": "f32"}}}


def run(backend: str, name: str, tracer: str) -> dict[str, Any]:
    """One model under one backend, in this process."""
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import openvino.torch  # noqa: F401  # pyright: ignore[reportMissingImports] -- registers the backend
    scenario = zoo.SCENARIOS[name]
    model, inputs = scenario.build(), scenario.inputs()
    compile_it: Callable[..., Any] = torch.compile
    if tracer == "treadle":
        import treadle

        compile_it = treadle.compile
    with torch.no_grad():
        expected = zoo.tensors_of(model(**inputs))
        fast = compile_it(model, backend=backend, options=OPTIONS.get(backend))
        start = time.perf_counter()
        found = zoo.tensors_of(fast(**inputs))
        first = time.perf_counter() - start
        errors = [
            float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in zip(found, expected, strict=True)
        ]
        times = measure.interleaved_medians(
            {"eager": lambda: model(**inputs), "compiled": lambda: fast(**inputs)}, 2.0, 5
        )
    graphs, breaks = measure.GRAPHS[tracer]()
    return {"error": max(errors), "first": first, "graphs": graphs, "breaks": len(breaks), **times}


def row_of(backend: str, name: str, tracer: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", backend, name, tracer]
    row: dict[str, Any] = {"backend": backend, "model": name, "tracer": tracer}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return {**row, "why": "more than 300 s"}
    lines = list(measure.lines_of_json(done.stdout))
    return {**row, **lines[-1]} if lines else {**row, "why": done.stderr.strip().splitlines()[-1][:200]}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=BACKENDS)
    parser.add_argument("--models", nargs="+", choices=list(zoo.SCENARIOS), default=list(zoo.SCENARIOS))
    parser.add_argument("--tracers", nargs="+", choices=TRACERS, default=TRACERS)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    parser.add_argument("--one", nargs=3, metavar=("BACKEND", "MODEL", "TRACER"), help="in this process, as JSON")
    options = parser.parse_args(arguments)
    if options.one:
        backend, model, tracer = options.one
        print(json.dumps(run(backend, model, tracer)))
        return 0
    rows = [row_of(b, m, t) for b in options.backends for m in options.models for t in options.tracers]
    command = " ".join(["python benchmarks/other_backends.py", *arguments])
    results = {"command": command, "machine": machine.describe(), "rows": rows}
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    texts = [
        [row["backend"], row["model"], row["tracer"]]
        + (
            [row["why"], "", "", ""]
            if "why" in row
            else [
                f"{row['error']:.0e}",
                f"{row['eager'] / row['compiled']:.2f}",
                f"{row['first']:.1f}",
                f"{row['graphs']} / {row['breaks']}",
            ]
        )
        for row in rows
    ]
    print(markdown(["backend", "model", "tracer", "error", "× eager", "first call, s", "graphs / breaks"], texts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
