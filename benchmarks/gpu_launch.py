"""What a call costs the host on a CUDA device, and checks of launches and recordings that need one.

    python benchmarks/gpu_launch.py                    everything, to benchmarks/results/gpu_launch.json; about two minutes
    python benchmarks/gpu_launch.py --torch            torch.compile beside it, in both modes
    python benchmarks/gpu_launch.py --only entry checks

entry     one native call per segment: microseconds per call and per kernel, for segments of 1 to 50 kernels
function  a function of small tensors, an MLP, and a training step of it: eager, default, mode="reduce-overhead"
results   how a recording hands out results: copies in fresh memory against its own memory, by bytes
cold      seconds from an empty cache to the first result of a trivial function, PyTorch imported
checks    results that stay alive, random numbers, streams, unaligned pointers, shapes, accumulated gradients, a recording
          that fails, an index out of range: each "ok" or what went wrong

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


# ------------------------------------------------------------------------------------------------ checks


def fast(f: Any, **options: Any) -> Any:
    return treadle.compile(f, mode="reduce-overhead", options=options or None)


def check_results_that_stay_alive() -> None:
    run, inputs = fast(pointwise), [torch.randn(32, 32, device=DEVICE) for _ in range(10)]
    found = [run(x) for x in inputs]
    for x, result in zip(inputs, found, strict=True):
        torch.testing.assert_close(result, pointwise(x))


def check_recordings_are_replayed() -> None:
    from treadle_codegen.host.replay import ReplayedGraph

    replayed: list[str | None] = []
    before = ReplayedGraph.__init__

    def watched(self: ReplayedGraph, *args: Any) -> None:
        before(self, *args)
        graphs.append(self)

    graphs: list[ReplayedGraph] = []
    ReplayedGraph.__init__ = watched  # type: ignore[method-assign]
    try:
        run = fast(lambda x: pointwise(x) @ x)
        for _ in range(6):
            run(torch.randn(32, 32, device=DEVICE))
        replayed = [graph.why_not for graph in graphs]
        assert graphs and all(graph.replays >= 3 for graph in graphs), (replayed, [graph.replays for graph in graphs])
    finally:
        ReplayedGraph.__init__ = before  # type: ignore[method-assign]


def check_random_numbers() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.sin(), 0.5) + torch.rand_like(x)

    x = torch.ones(1000, device=DEVICE)
    for way in (treadle.compile(noisy), fast(noisy)):
        torch.manual_seed(7)
        wanted = [noisy(x) for _ in range(6)] + [torch.rand(3, device=DEVICE)]
        torch.manual_seed(7)
        found = [way(x) for _ in range(6)] + [torch.rand(3, device=DEVICE)]
        for one, two in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, two)


def check_streams() -> None:
    run = fast(lambda x: (pointwise(x) @ x).exp().sin())
    plain = treadle.compile(lambda x: (pointwise(x) @ x).exp().sin())
    inputs = [torch.randn(512, 512, device=DEVICE) / 30 for _ in range(12)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    for way in (run, plain):
        found = []
        for k, x in enumerate(inputs):
            with torch.cuda.stream(streams[k % 3]):
                found.append(way(x))
        torch.cuda.synchronize()
        for x, result in zip(inputs, found, strict=True):
            torch.testing.assert_close(result, (pointwise(x) @ x).exp().sin(), rtol=1e-3, atol=1e-3)


def check_pointers_and_sizes() -> None:
    memory = torch.randn(4097, device=DEVICE)
    for way in (treadle.compile(lambda x: x.sin() + 1), fast(lambda x: x.sin() + 1)):
        for x in (memory[:4096], memory[1:], memory[3:1003], memory[:0], memory[::2], memory[:4096].view(64, 64).t()):
            for _ in range(4):
                torch.testing.assert_close(way(x), x.sin() + 1)


def check_training() -> None:
    def trained(way: Callable[[Any], Any], at_once: int) -> list[float]:
        module = mlp()
        run, optimizer, found = way(module), torch.optim.SGD(module.parameters(), 0.01), []
        torch.manual_seed(3)
        for _ in range(4):
            losses = [run(torch.randn(16, 64, device=DEVICE)).pow(2).mean() for _ in range(at_once)]
            for loss in losses:
                loss.backward()
                found.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return found

    for at_once in (1, 3):
        plain, recorded = trained(treadle.compile, at_once), trained(fast, at_once)
        assert plain == recorded, (plain, recorded)
        torch.testing.assert_close(
            torch.tensor(plain), torch.tensor(trained(lambda f: f, at_once)), rtol=1e-3, atol=1e-3
        )


def check_memory_of_temporaries() -> None:
    """Temporaries of several graphs share memory, and empty_cache gives it back."""
    functions = [treadle.compile(lambda x, k=k: ((x + k) @ x).sin() @ x) for k in range(4)]
    x = torch.randn(2048, 2048, device=DEVICE) / 50
    for run in functions:
        run(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    for run in functions:
        run(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= held, (torch.cuda.memory_allocated(), held)


def check_a_recording_that_fails() -> None:
    from treadle_codegen.targets.triton.cuda_graphs import CudaGraphs

    recorder, x = CudaGraphs(torch.device("cuda", 0)), torch.ones(100, device=DEVICE)
    try:
        recorder.record(lambda: print((x + torch.rand_like(x)).sum().item()))
    except RuntimeError:
        pass
    else:
        raise AssertionError("a recording waited for the device")
    torch.rand(10, device=DEVICE)
    assert (x + 1).sum().item() == 200
    spoiled = recorder.is_recording()
    again, made = CudaGraphs(torch.device("cuda", 0)), torch.zeros(100, device=DEVICE)

    def work() -> None:
        made.copy_(x + 1)

    replay = again.record(work)
    with again.in_order():
        replay()
    assert made.sum().item() == 200, "recording after a failure"
    if spoiled:
        print("    (the failure had spoiled the generator)")


ASSERT = """
import torch, treadle
@treadle.compile
def take(x, i): return x[i] * 2
x = torch.ones(10, device="cuda")
take(x, torch.tensor([1, 2], device="cuda"))
try:
    take(x, torch.tensor([1, 20], device="cuda")); torch.cuda.synchronize(); print("no error")
except RuntimeError as error:
    print("raised", "assert" in str(error))
"""


def check_an_index_out_of_range() -> None:
    done = subprocess.run([sys.executable, "-c", ASSERT], capture_output=True, text=True, timeout=120, check=False)
    assert "raised True" in done.stdout, done.stdout + done.stderr[-1500:]


def check_another_device() -> None:
    if torch.cuda.device_count() < 2:
        print("    (one device only)")
        return
    for way in (treadle.compile(pointwise), fast(pointwise)):
        for _ in range(4):
            x = torch.randn(32, 32, device="cuda:1")
            torch.testing.assert_close(way(x), pointwise(x))


def checks() -> dict[str, str]:
    found = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            treadle.reset()
            try:
                check()
                found[name.removeprefix("check_")] = "ok"
            except Exception as error:  # a report of all checks is wanted
                traceback.print_exc(limit=4)
                found[name.removeprefix("check_")] = f"{type(error).__name__}: {str(error)[:800]}"
            print(f"  {name}: {found[name.removeprefix('check_')][:200]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("entry", "function", "results", "cold", "checks")
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
        "checks": checks,
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
