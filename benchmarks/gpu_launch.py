"""What a call costs the host on a CUDA device.

    python benchmarks/gpu_launch.py                    everything, to benchmarks/results/gpu_launch.json; about two minutes
    python benchmarks/gpu_launch.py --torch            torch.compile beside it, in both modes
    python benchmarks/gpu_launch.py --only entry cold

entry     one native call per segment: microseconds per call and per kernel, for segments of 1 to 50 kernels
function  a function of small tensors, an MLP, and a training step of it: eager, default, mode="reduce-overhead"
results   how a recording hands out results: copies in fresh memory against its own memory, by bytes
cold      seconds from an empty cache to the first result of a trivial function, PyTorch imported

Host times are of calls in a row without waiting for the device, which is idle at the start of each row; total times include
it. Figures are medians over rows.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import treadle

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "gpu_launch.json"
ROWS, IN_A_ROW = 15, 100
DEVICE = "cuda"

KERNEL = """
@triton.jit
def {name}(b0, b1, n0, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(b1 + x, tl.load(b0 + x, x < n0) + 1.0, x < n0)
"""


def timed(call: Callable[[], Any], rows: int = ROWS, in_a_row: int = IN_A_ROW) -> dict[str, float]:
    """Microseconds per call: `host` until the calls return, `total` until their work is done."""
    for _ in range(5):
        call()
    host, total = [], []
    for _ in range(rows):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(in_a_row):
            call()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        total.append(time.perf_counter() - start)
    scale = 1e6 / in_a_row
    return {"host": round(statistics.median(host) * scale, 2), "total": round(statistics.median(total) * scale, 2)}


# ------------------------------------------------------------------------------------------------ entry points


def entry_points() -> dict[str, Any]:
    from treadle_codegen.options import CodegenOptions
    from treadle_codegen.targets.triton.build import load_unit
    from treadle_codegen.targets.triton.entries import ENTRY_ABI

    x, y = torch.zeros(1024, device=DEVICE), torch.zeros(1024, device=DEVICE)
    found: dict[str, Any] = {}
    for count in (1, 10, 50):
        names = [f"k_{k:02d}" for k in range(count)]
        record = {
            "signature": ["*fp32", "*fp32", "i32"],
            "constants": {"XBLOCK": 256},
            "num_warps": 4,
            "num_stages": 3,
            "checks_bounds": False,
        }
        launches = [{"kernel": name, "slots": [1, 2, 3], "grid": [[["slot", 3], 256]]} for name in names]
        source = "import triton\nimport triton.language as tl\n" + "".join(KERNEL.format(name=name) for name in names)
        source += f"\nKERNELS = {dict.fromkeys(names, record)!r}\nSEGMENTS = {{'segment_0': {launches!r}}}\n"
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            entries, _ = load_unit(source, ["segment_0"], CodegenOptions(cache_dir=Path(folder)))
            seconds = time.perf_counter() - start
        table = ENTRY_ABI.new_table(4)
        table.slots[1], table.slots[2], table.slots[3] = x.data_ptr(), y.data_ptr(), 1000
        entry, argument = entries["segment_0"], table.argument
        in_a_row = max(4, 500 // count)  # fewer launches than the driver's queue holds
        figures = timed(lambda entry=entry, argument=argument: entry(argument), in_a_row=in_a_row)
        figures["host per kernel"] = round(figures["host"] / count, 2)
        figures["build seconds"] = round(seconds, 3)
        found[f"{count} kernels"] = figures
        expected = torch.zeros(1024, device=DEVICE)
        expected[:1000] = 1
        assert torch.equal(y, expected), "wrong result"
    found["eager x + 1"] = timed(lambda: x + 1)
    found["ctypes call of nothing"] = timed(ctypes.CDLL(None).getpid)
    return found


# ------------------------------------------------------------------------------------------------ functions


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(10) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))]
    return torch.nn.Sequential(*layers).to(DEVICE)


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2 + x.cos()).softmax(-1) + 1


def functions(with_torch: bool) -> dict[str, Any]:
    ways: dict[str, Callable[[Any], Any]] = {
        "eager": lambda f: f,
        "treadle": lambda f: treadle.compile(f),
        "treadle reduce-overhead": lambda f: treadle.compile(f, mode="reduce-overhead"),
    }
    if with_torch:
        ways["torch"] = lambda f: torch.compile(f)
        ways["torch reduce-overhead"] = lambda f: torch.compile(f, mode="reduce-overhead")
    found: dict[str, Any] = {"pointwise": {}, "mlp": {}, "mlp training step": {}}
    for name, way in ways.items():
        x = torch.randn(64, 64, device=DEVICE)
        with torch.no_grad():
            run = way(pointwise)
            torch.testing.assert_close(run(x), pointwise(x))
            found["pointwise"][name] = timed(lambda run=run, x=x: run(x))
            module = mlp()
            compiled = way(module)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-3, atol=1e-3)
            found["mlp"][name] = timed(lambda run=compiled, x=x: run(x), in_a_row=10)
        compiled = way(mlp())

        def step(run: Any = compiled, x: torch.Tensor = x) -> None:
            run(x).sum().backward()

        found["mlp training step"][name] = timed(step, in_a_row=5)
    return found


def results() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for count, elements in ((16, 1 << 10), (16, 1 << 18), (16, 1 << 22), (2, 1 << 24)):
        source = [torch.zeros(elements, device=DEVICE) for _ in range(count)]

        def copies(source: list[torch.Tensor] = source) -> list[torch.Tensor]:
            made = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=DEVICE) for t in source]
            torch._foreach_copy_(made, source)
            return made

        found[f"{count} of {elements * 4} bytes"] = {
            "copied": timed(copies, in_a_row=10),
            "lent": timed(lambda source=source: [t.detach() for t in source], in_a_row=10),
        }
    return found


COLD = """
import sys, time, torch
x = torch.ones(1000, device="cuda"); torch.cuda.synchronize()
start = time.perf_counter()
if sys.argv[1] == "treadle":
    import treadle; run = treadle.compile(lambda x: x.sin() + 1)
else:
    run = torch.compile(lambda x: x.sin() + 1)
run(x); torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


def cold(with_torch: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("treadle", *(("torch",) if with_torch else ())):
        with tempfile.TemporaryDirectory() as folder:
            caches = ("TREADLE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
            environment = {**os.environ, **dict.fromkeys(caches, folder)}
            command = [sys.executable, "-c", COLD, name]
            for label in ("empty cache", "filled cache"):
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=120, check=False
                )
                words = done.stdout.split()
                found[f"{name}, {label}"] = round(float(words[-1]), 3) if words else done.stderr[-500:]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("entry", "function", "results", "cold")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_launch.py measures a CUDA device, and PyTorch finds none")
    run: dict[str, Callable[[], Any]] = {
        "entry": entry_points,
        "function": lambda: functions(given.torch),
        "results": results,
        "cold": lambda: cold(given.torch),
    }
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "torch": torch.__version__,
        "unit": "microseconds per call, unless the name says seconds; cold: seconds",
    }
    for name in given.only:
        print(name, flush=True)
        start = time.perf_counter()
        try:
            report[name] = run[name]()
        except Exception as error:  # the other sections are still wanted
            traceback.print_exc()
            report[name] = f"{type(error).__name__}: {str(error)[:800]}"
        print(f"  {json.dumps(report[name])} ({time.perf_counter() - start:.1f} s)", flush=True)
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
