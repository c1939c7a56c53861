"""Matrix products with what follows them on a GPU: eager (cuBLAS), Treadle's default and its max-autotune, in one run.

    python benchmarks/gpu_matmul.py [--output results.json] [--seconds 85] [--dtypes bfloat16,float32]

Sizes are those of models: linear layers of BERT, Llama and ViT, decoding steps, attention scores. Times are the device's own,
medians with cold caches, by the clock that autotuning uses. The JSON has a row for each case (microseconds, speed-up over
eager) and the tables of all trials.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import treadle
from treadle_codegen.targets.triton.clock import CudaClock

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "tf32": torch.float32}


def linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def linear_residual(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b) + r


def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w)


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.bmm(q, k.transpose(1, 2)) * 0.125


def swiglu(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


# name: function, shapes of its arguments
CASES: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "square 4096": (plain, [(4096, 4096), (4096, 4096)]),
    "bert ffn gelu": (linear_gelu, [(4096, 768), (3072, 768), (3072,)]),
    "bert ffn out + residual": (linear_residual, [(4096, 3072), (768, 3072), (768,), (4096, 768)]),
    "vit qkv odd rows": (plain, [(197 * 8, 768), (2304, 768)]),
    "llama swiglu": (swiglu, [(2048, 2048), (5632, 2048), (5632, 2048)]),
    "decode 1 row": (plain, [(1, 4096), (4096, 4096)]),
    "decode 16 rows": (linear_gelu, [(16, 4096), (4096, 4096), (4096,)]),
    "skinny, many terms": (plain, [(64, 16384), (256, 16384)]),
    "attention scores": (scores, [(96, 512, 64), (96, 512, 64)]),
}


class Trials:
    """Collects what the log `autotune` says."""

    def __init__(self) -> None:
        import logging

        self.texts: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: self.texts.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("treadle.autotune")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def measure(dtypes: list[str], budget: float) -> Iterator[dict[str, Any]]:
    begin = time.monotonic()
    clock = CudaClock(torch.device("cuda"))
    for kind in dtypes:
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        for name, (function, shapes) in CASES.items():
            if time.monotonic() - begin > budget:
                yield {"case": name, "dtype": kind, "skipped": "no time left"}
                continue
            treadle.reset()
            args = [torch.randn(shape, device="cuda", dtype=DTYPES[kind]) / 8 for shape in shapes]
            row: dict[str, Any] = {"case": name, "dtype": kind}
            with torch.no_grad():
                expected = function(*args)
                row["eager_us"] = 1e6 * clock.seconds(lambda function=function, args=args: function(*args), name)
                for mode in ("default", "max-autotune-no-cudagraphs"):
                    start = time.monotonic()
                    compiled = treadle.compile(function, mode=mode)
                    found = compiled(*args)
                    short = mode.removesuffix("-no-cudagraphs")
                    row[f"{short}_compile_s"] = round(time.monotonic() - start, 2)
                    row[f"{short}_us"] = 1e6 * clock.seconds(lambda compiled=compiled, args=args: compiled(*args), name)
                    row[f"{short}_error"] = float((found.double() - expected.double()).abs().max())
            row["speedup"] = row["eager_us"] / row["max-autotune_us"]
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="gpu_matmul.json")
    parser.add_argument("--seconds", type=float, default=85.0)
    parser.add_argument("--dtypes", default="bfloat16,tf32,float16,float32")
    options = parser.parse_args()
    trials = Trials()
    rows: list[dict[str, Any]] = []
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "rows": rows,
        "trials": trials.texts,
    }
    for row in measure(options.dtypes.split(","), options.seconds):
        rows.append(row)
        print(json.dumps(row), flush=True)
        with open(options.output, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
