"""The processes of `benchmarks/gpu.py`: each compiles its cases, waits until it is its turn, and measures.

A worker reads one line of JSON (its cases), prints rows as lines of JSON, prints READY when all is compiled, and measures after a
line GO. A process that dies leaves rows that say so.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
READY, GO = "READY", "GO"
KEPT_BYTES = 64 << 20  # arguments that a process keeps between compiling and measuring
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TREADLE_CACHE_DIR", "XDG_CACHE_HOME")

Row = dict[str, Any]
Compiler = Callable[[Any], Callable[..., Any]]


# ------------------------------------------------------------------------------------------------ variants


def _torch_compile(**options: Any) -> Compiler:
    def compile_(compute: Any) -> Callable[..., Any]:
        import torch

        return torch.compile(compute, **options)

    return compile_


def _treadle(**options: Any) -> Compiler:
    def compile_(compute: Any) -> Callable[..., Any]:
        import treadle

        return treadle.compile(compute, **options)

    return compile_


VARIANTS: Mapping[str, Compiler] = {
    "eager": lambda compute: compute,
    "treadle": _treadle(),
    "treadle reduce-overhead": _treadle(mode="reduce-overhead"),
    "treadle max-autotune": _treadle(mode="max-autotune"),
    "torch.compile": _torch_compile(),
    "torch.compile reduce-overhead": _torch_compile(mode="reduce-overhead"),
    "max-autotune": _torch_compile(mode="max-autotune"),
}


class _Statistics:
    """What Treadle says of the graphs that were compiled since this was made; nothing for other variants."""

    def __init__(self, variant: str) -> None:
        self._is_ours = variant.startswith("treadle")
        self._before = self._now()

    def _now(self) -> Any:
        if not self._is_ours:
            return None
        import treadle

        return treadle.stats()

    def figures(self) -> Row:
        if not self._is_ours:
            return {}
        before, now = self._before, self._now()
        return {
            "graphs": now.graphs - before.graphs,
            "breaks": [f"{each.code}: {each.reason[:300]}" for each in now.breaks[len(before.breaks) :]][:5],
            "in_eager": [each.reason[:300] for each in now.eager_graphs[len(before.eager_graphs) :]][:5],
        }


# ------------------------------------------------------------------------------------------------ in the worker


class Worker:
    """Compiles and measures the cases of one process."""

    def __init__(self, given: Mapping[str, Any], emit: Callable[[Any], None]) -> None:
        import torch

        import gpu
        from gpu_timing import Clock

        self._given, self._emit, self._torch = given, emit, torch
        parts = sorted({key.split("/")[0] for key in given["keys"]})
        names = ["--models", *given["models"]] if given["models"] else []
        options = gpu.parse(["--parts", *parts, *names, "--batch", str(given["batch"])])
        by_key = {case.key: case for case in gpu.cases_of(options)}
        self._cases = [by_key[key] for key in given["keys"]]
        self._device = torch.device(given["device"])
        self._clock = Clock(self._device)
        self._used: set[str] = set()
        self._left: list[tuple[Any, Any, str, Any, Row]] = []
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def compile_all(self) -> None:
        for case in self._cases:
            if time.time() > self._given["compile_until"]:
                self._emit({"skip": [f"{case.key}/{variant}" for variant in self._given["variants"]]})
                continue
            try:
                self._compile(case)
            except Exception as error:  # a row, so that the rest is measured
                self._emit(self._row(case, "all", error))

    def _compile(self, case: Any) -> None:
        torch = self._torch
        from kernel_cases import bytes_of, copied

        work = case.build(self._device)
        with torch.set_grad_enabled(case.with_grad):
            arguments = copied(work.arguments[0])
            result = work.run(work.compute, arguments)
            expected = _detached(arguments if result is None else result)
            for variant in self._given["variants"]:
                if time.time() > self._given["compile_until"]:
                    self._emit({"skip": [f"{case.key}/{variant}"]})
                    continue
                try:
                    self._left.append((case, work, variant, *self._first(work, variant, expected)))
                except Exception as error:
                    self._emit(self._row(case, variant, error))
        if bytes_of(work.arguments) > KEPT_BYTES:
            work.arguments.clear()  # other processes need memory while this one waits

    def _first(self, work: Any, variant: str, expected: list[Any]) -> tuple[Any, Row]:
        """The compiled function, and a row with the first call's figures."""
        from kernel_cases import copied

        statistics = _Statistics(variant)
        row: Row = {"first_in_process": variant not in self._used, "jobs": self._given["jobs"]}
        self._used.add(variant)
        arguments = copied(work.arguments[0])
        self._clock.synchronize()
        start = time.perf_counter()
        compiled = VARIANTS[variant](work.compute)
        result = work.run(compiled, arguments)
        self._clock.synchronize()
        row["first"] = time.perf_counter() - start
        row["difference"] = _difference(_detached(arguments if result is None else result), expected)
        return compiled, row | statistics.figures()

    def measure_all(self) -> None:
        """Each case's variants one after the other, on the same inputs."""
        torch = self._torch
        self._emit({"copy_gbps": self._copy_bandwidth()})
        for k, (case, work, variant, compiled, row) in enumerate(self._left):
            if time.time() > self._given["measure_until"]:
                self._emit({"skip": [f"{case.key}/{variant}"]})
                continue
            if k and self._left[k - 1][1] is not work:
                self._left[k - 1][1].arguments.clear()
            try:
                work.arguments = work.arguments or case.build(self._device).arguments
                with torch.set_grad_enabled(case.with_grad):
                    self._emit(self._row(case, variant) | row | self._measure(case, work, compiled))
            except Exception as error:
                self._emit(self._row(case, variant, error) | row)

    def _measure(self, case: Any, work: Any, compiled: Any) -> Row:
        clocks = {"device": self._clock.device_time, "wall": self._clock.wall, "host": self._clock.host}
        sets = work.arguments
        seconds = clocks[case.how](lambda k: work.run(compiled, sets[k % len(sets)]))
        row: Row = {"seconds": seconds, "how": case.how}
        if work.moved:
            row |= {"gbps": work.moved / seconds / 1e9, "of_copy": work.moved / seconds / 1e9 / self._copy_gbps}
        if work.flops:
            row["tflops"] = work.flops / seconds / 1e12
        return row

    def _copy_bandwidth(self) -> float:
        """Bytes read and written per second by copies of 64 MB, in GB/s."""
        size = 64 << 20
        pairs = [
            [self._torch.empty(size, dtype=self._torch.uint8, device=self._device) for _ in range(2)] for _ in "12"
        ]
        seconds = self._clock.device_time(lambda k: pairs[k % 2][0].copy_(pairs[k % 2][1]))
        self._copy_gbps = 2 * size / seconds / 1e9
        return self._copy_gbps

    def _row(self, case: Any, variant: str, error: Exception | None = None) -> Row:
        row: Row = {"part": case.part, "name": case.name, "size": case.size, "dtype": case.dtype, "variant": variant}
        if error is not None:
            row["error"] = f"{type(error).__name__}: {str(error)[:1500]}"
        return row


def _detached(result: Any) -> list[Any]:
    import torch

    import zoo

    return [
        x.detach().double() for x in zoo.tensors_of(result) if x.is_floating_point() and isinstance(x, torch.Tensor)
    ]


def _difference(mine: list[Any], theirs: list[Any]) -> float | None:
    if [x.shape for x in mine] != [x.shape for x in theirs]:
        return float("inf")
    found = [
        ((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item()
        for a, b in zip(mine, theirs, strict=True)
        if b.numel()
    ]
    return max(found) if found else None


def work_here() -> None:
    """The worker's main function."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what compilers print is no row

    def emit(message: Any) -> None:
        print(json.dumps(message) if not isinstance(message, str) else message, file=lines, flush=True)

    worker = Worker(json.loads(sys.stdin.readline()), emit)
    worker.compile_all()
    emit(READY)
    if sys.stdin.readline().strip() == GO:
        worker.measure_all()
    os._exit(0)  # compilers' own processes are not waited for


# ------------------------------------------------------------------------------------------------ in the parent


class Process:
    """One worker as its parent sees it."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.seen: set[str] = set()
        self.copy_gbps: float | None = None
        self._directory = tempfile.TemporaryDirectory(prefix="treadle-gpu-", ignore_cleanup_errors=True)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        caches = {name: str(Path(self._directory.name) / name.lower()) for name in CACHES}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **caches},
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.say(json.dumps(given))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            print(line, file=self._process.stdin, flush=True)
        except OSError:
            pass  # it died; `messages` ends

    def messages(self, deadline: float) -> tuple[list[Any], bool]:
        """What it says until READY, its end or the deadline; and whether it was READY."""
        found = []
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.time(), 0.1))
            except queue.Empty:
                return found, False
            if line is None or line == READY:
                return found, line == READY
            found.append(json.loads(line))

    def end(self) -> str:
        """Kill what is left of it; the end of what it printed."""
        try:
            os.killpg(self._process.pid, 9)
        except ProcessLookupError:
            pass
        status = self._process.wait()
        self._errors.seek(0)
        printed = self._errors.read().decode(errors="replace").strip().splitlines()
        self._directory.cleanup()
        return f"status {status}: " + " | ".join(printed[-5:])[-1500:]


def run_batch(
    workers: Sequence[Mapping[str, Any]],
    deadline: float,
    add: Callable[[Row], None],
    skip: Callable[[Sequence[str]], None],
) -> None:
    """Let workers compile together and measure in turn; rows go to `add` as they come, what was left out to `skip`."""
    processes = [Process(given) for given in workers]
    states = [(process, *process.messages(deadline)) for process in processes]
    for process, messages, _ in states:
        _pass_on(process, messages, add, skip)
    for process, _, is_ready in states:
        if is_ready:
            process.say(GO)
            messages, _ = process.messages(deadline + 5)
            _pass_on(process, messages, add, skip)
        _account_for_the_rest(process, process.end(), time.time() > deadline, add, skip)


def _account_for_the_rest(
    process: Process,
    ending: str,
    is_late: bool,
    add: Callable[[Row], None],
    skip: Callable[[Sequence[str]], None],
) -> None:
    """Skip what a process left for want of time; a row for what it left because it died."""
    for key in process.given["keys"]:
        left = [v for v in process.given["variants"] if not {f"{key}/{v}", f"{key}/all"} & process.seen]
        if is_late:
            skip([f"{key}/{variant}" for variant in left])
            continue
        part, name, size, dtype = key.split("/")
        for variant in left:
            row = {"part": part, "name": name, "size": size, "dtype": dtype, "variant": variant}
            add(row | {"error": f"the process ended, {ending}"})


def _pass_on(
    process: Process, messages: Sequence[Any], add: Callable[[Row], None], skip: Callable[[Sequence[str]], None]
) -> None:
    for message in messages:
        if "copy_gbps" in message:
            process.copy_gbps = message["copy_gbps"]
        elif "skip" in message:
            process.seen |= set(message["skip"])
            skip(message["skip"])
        else:
            process.seen.add("/".join(message[key] for key in ("part", "name", "size", "dtype", "variant")))
            add(message | {"copy_gbps": process.copy_gbps})


def line_of(row: Row) -> str:
    """A row for people."""
    what = " ".join(str(row[key]) for key in ("part", "name", "size", "dtype", "variant"))
    if row.get("error"):
        return f"{what}: FAILED {row['error'].splitlines()[0][:300]}"
    figures = [f"{row['seconds'] * 1e6:.1f} us", f"first {row['first']:.2f} s"]
    figures += [f"{row['of_copy']:.2f} of copy"] if "of_copy" in row else []
    figures += [f"{row['tflops']:.1f} TFLOP/s"] if "tflops" in row else []
    figures += [f"difference {row['difference']:.1e}"] if row.get("difference") is not None else []
    figures += [f"IN EAGER {row['in_eager'][0][:150]}"] if row.get("in_eager") else []
    return f"{what}: {', '.join(figures)}"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]
    work_here()
