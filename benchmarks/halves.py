"""Kernels that read or write float16 on a CPU: eager, Treadle and torch.compile side by side.

    python benchmarks/halves.py                     all, to benchmarks/results/halves.json
    python benchmarks/halves.py --no-torch          without torch.compile

One thread, in one process; the calls of the variants are interleaved. A figure is the least of 40 means, in microseconds; `ratio` is
eager's over Treadle's, so that more than 1 is faster than eager.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F

import treadle

DEFAULT_OUTPUT = Path(__file__).resolve().parent / "results" / "halves.json"
SHAPES = ((64, 256), (333, 1001), (2048, 1024))
ROUNDS, ELEMENTS_PER_ROUND = 40, 200_000

Operation = Callable[[torch.Tensor], torch.Tensor]
OPERATIONS: dict[str, tuple[torch.dtype, Operation]] = {
    "float32 to float16": (torch.float32, lambda x: x.half()),
    "float64 to float16": (torch.float64, lambda x: x.half()),
    "float16 to float32": (torch.float16, lambda x: x.float()),
    "x * 2.5": (torch.float16, lambda x: x * 2.5),
    "x + x": (torch.float16, lambda x: x + x),
    "abs": (torch.float16, lambda x: x.abs()),
    "gelu": (torch.float16, lambda x: F.gelu(x)),
    "silu(x) * x": (torch.float16, lambda x: F.silu(x) * x),
    "softmax": (torch.float16, lambda x: x.softmax(-1)),
    "layer norm": (torch.float16, lambda x: F.layer_norm(x, x.shape[-1:])),
    "sum of rows": (torch.float16, lambda x: x.sum(-1)),
}


def microseconds(variants: dict[str, Operation], x: torch.Tensor) -> dict[str, float]:
    """The least mean time of a call of each variant."""
    calls = max(1, ELEMENTS_PER_ROUND // x.numel())
    best = dict.fromkeys(variants, float("inf"))
    for variant in variants.values():
        variant(x)
    for _ in range(ROUNDS):
        for name, variant in variants.items():
            start = time.perf_counter()
            for _ in range(calls):
                variant(x)
            best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
    return best


def measure(with_torch: bool) -> list[dict[str, object]]:
    """A row for each operation and shape."""
    rows: list[dict[str, object]] = []
    for name, (dtype, operation) in OPERATIONS.items():
        for shape in SHAPES:
            x = torch.randn(shape).to(dtype)
            variants = {"eager": operation, "treadle": treadle.compile(operation)}
            if with_torch:
                variants["torch.compile"] = torch.compile(operation, dynamic=False)
            torch.testing.assert_close(variants["treadle"](x), operation(x), rtol=2e-3, atol=2e-3)
            found = microseconds(variants, x)
            ratio = found["eager"] / found["treadle"]
            rows.append({"operation": name, "shape": shape, "us": found, "ratio": ratio})
            print(f"{name:20} {shape!s:14} {ratio:.2f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--no-torch", action="store_true", help="leave out torch.compile")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    treadle.config.leave_unprofitable = False  # single operations are left to eager else
    with torch.no_grad():
        rows = measure(not arguments.no_torch)
    found = {"date": date.today().isoformat(), "torch": torch.__version__, "rows": rows}
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
