"""Single kernels: eager, torch.compile and Treadle in one process, against the bandwidth of a copy of the same size.

    python benchmarks/kernels.py                                     everything (about 9 minutes on a quiet CPU), to results/kernels.json
    python benchmarks/kernels.py --only softmax cumsum               some kernels
    python benchmarks/kernels.py --sizes cache --dtypes float32      a part: about 1.5 minutes
    python benchmarks/kernels.py --device cuda                       on a GPU

Beside the JSON lies a plot: bandwidth over bytes moved, with copies as the roofline.
Seconds are medians of interleaved calls, on one thread. `share` is bytes that the kernel has to move, over its seconds, over the bandwidth
of `copy_` between two tensors of as many bytes. Beside `--clock wall` there is `--clock cpu`: the processor's time, for a machine that is
shared with others.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kernel_cases import DTYPES, KERNELS, Kernel, Maker, Tensors, bytes_moved, copied

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
from markdown_table import markdown, number, times  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "kernels.json"
# Rows and columns in float32: 256 KB, 64 MB, and 16 MB in rows that no vector length divides.
SHAPES = {"cache": (64, 1024), "memory": (16384, 1024), "odd": (4099, 1021)}
LOW_FLOATS = (torch.float16, torch.bfloat16)
MOST_OTHERS = 0.01  # of the positions of maxima of 16-bit numbers
VARIANTS = ("eager", "torch.compile", "treadle")

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}

Call = Callable[[], Any]


def compiled(variant: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the variant runs it."""
    if variant == "torch.compile":
        torch._dynamo.reset()
        return torch.compile(function)  # type: ignore[no-any-return]
    if variant == "treadle":
        import treadle

        treadle.reset()
        return treadle.compile(function)
    return function


def maker(size: str, dtype: torch.dtype, device: str) -> Maker:
    """Tensors of a size in bytes that is the same for all dtypes."""
    rows, columns = SHAPES[size]
    return Maker(rows * 4 // dtype.itemsize, columns, dtype, torch.device(device))


def why_not_close(result: Any, expected: Any, most: float) -> str | None:
    """How a result differs from eager's, or None; `most`: the share of positions (argmax) that may be others."""
    if not isinstance(expected, torch.Tensor):
        reasons = (why_not_close(mine, theirs, most) for mine, theirs in zip(result, expected, strict=True))
        return next(filter(None, reasons), None)
    if expected.dtype is torch.int64:
        share = (result != expected).double().mean().item()
        return f"{share:.2%} of the positions differ" if share > most else None
    try:
        torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    except AssertionError as error:
        return str(error)
    return None


def calls_of(kernel: Kernel, given: Tensors, variants: Sequence[str]) -> dict[str, Call]:
    """What each variant calls, with tensors of its own; results are compared with eager's."""
    calls: dict[str, Call] = {}
    expected: Any = None
    # Of 16 bits, eager rounds between operators, and a kernel once: what is largest may be another element (docs/soundness.md).
    is_rounded = any(isinstance(x, torch.Tensor) and x.dtype in LOW_FLOATS for x in given)
    most = MOST_OTHERS if is_rounded else 0.0
    for variant in variants:
        function, arguments = compiled(variant, kernel.compute), copied(given)
        result = function(*arguments)
        result = copied(arguments) if result is None else result
        if expected is None:
            expected = result
        elif (reason := why_not_close(result, expected, most)) is not None:
            if variant == "treadle":
                raise AssertionError(reason)
            print(f"{variant} differs from eager: {reason.splitlines()[0]}", file=sys.stderr)
        calls[variant] = lambda function=function, arguments=arguments: function(*arguments)
    return calls


def seconds_of(calls: Mapping[str, Call], device: str, budget: float, clock: Callable[[], float]) -> dict[str, float]:
    """The median seconds of each call, called in turns for about `budget` seconds each."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(1, int(2e-3 / max(_timed(call, 1, wait, clock), 1e-7)))  # a sample takes 2 ms at least
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + budget * len(calls)
    while time.perf_counter() < end or len(next(iter(samples.values()))) < 5:
        for name, call in calls.items():
            samples[name].append(_timed(call, repeats[name], wait, clock))
    return {name: statistics.median(taken) for name, taken in samples.items()}


def _timed(call: Call, n: int, wait: Call, clock: Callable[[], float]) -> float:
    wait()
    start = clock()
    for _ in range(n):
        call()
    wait()
    return (clock() - start) / n


def copy_call(n_bytes: int, device: str) -> Call:
    """A copy that moves `n_bytes`, half of them read and half written."""
    source = torch.ones(max(n_bytes // 8, 1), device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure(name: str, size: str, dtype: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one kernel."""
    torch.manual_seed(0)
    kernel, arguments = KERNELS[name], KERNELS[name].arguments(maker(size, DTYPES[dtype], options.device))
    with torch.no_grad():
        n_bytes = bytes_moved(arguments, kernel.compute(*copied(arguments)))
        calls = {**calls_of(kernel, arguments, options.variants), "copy": copy_call(n_bytes, options.device)}
        row: dict[str, Any] = {"kernel": name, "size": size, "dtype": dtype, "bytes": n_bytes}
        seconds = seconds_of(calls, options.device, options.seconds, CLOCKS[options.clock])
    row["seconds"] = seconds
    row["share"] = {variant: seconds["copy"] / taken for variant, taken in seconds.items() if variant != "copy"}
    return row


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(KERNELS), default=list(KERNELS), metavar="KERNEL")
    parser.add_argument("--sizes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=0.2, help="measuring time of each variant of each kernel")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes, and the plot beside it"
    )
    return parser.parse_args(arguments)


def ratios(rows: Iterable[Mapping[str, Any]], over: str) -> list[float]:
    """Seconds of `over` per second of Treadle."""
    found = [row["seconds"] for row in rows]
    return [seconds[over] / seconds["treadle"] for seconds in found if over in seconds and "treadle" in seconds]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of figures and geometric means, as Markdown."""
    lines = []
    for row in rows:
        seconds = row["seconds"]
        against = [ratios([row], over) for over in ("eager", "torch.compile")]
        lines.append(
            [f"{row['kernel']}, {row['size']}, {row['dtype']}"]
            + [number(seconds.get(variant), 1, 1e6) for variant in VARIANTS]
            + [times(found[0] if found else None) for found in against]
            + [number(row["share"].get("treadle"), 0, 100)]
        )
    for over in ("eager", "torch.compile"):
        if found := ratios(rows, over):
            mean = math.exp(statistics.fmean(map(math.log, found)))
            lines.append([f"against {over}", "", "", "", f"mean {times(mean)}", f"worst {times(min(found))}", ""])
    headings = [
        "kernel",
        "eager, µs",
        "torch.compile, µs",
        "Treadle, µs",
        "over eager",
        "over torch.compile",
        "% of copy",
    ]
    return markdown(headings, lines)


_COLOURS = {"eager": "#999999", "torch.compile": "#d95f02", "treadle": "#1b9e77"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720, 440, 60, 40, 48


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """An SVG: bandwidth of each kernel over the bytes that it moves, both logarithmic, under the line of copies of as many bytes."""
    points = [
        (variant, row["bytes"], row["bytes"] / taken / 1e9, f"{row['kernel']}, {row['size']}, {row['dtype']}")
        for row in rows
        for variant, taken in row["seconds"].items()
    ]
    least, most = [limit(math.log10(p[1]) for p in points) for limit in (min, max)]
    low = math.floor(min(math.log10(p[2]) for p in points))
    high = math.ceil(max(math.log10(p[2]) for p in points))

    def place(n_bytes: float, bandwidth: float) -> tuple[float, float]:
        across = (math.log10(n_bytes) - least) / max(most - least, 1e-9)
        up = (math.log10(bandwidth) - low) / max(high - low, 1e-9)
        return _LEFT + across * (_WIDTH - _LEFT - 20), _HEIGHT - _BOTTOM - up * (_HEIGHT - _BOTTOM - _TOP)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-family="sans-serif" font-size="12">',
        "<title>bandwidth of kernels and of copies</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for exponent in range(low, high + 1):
        _, y = place(10**least, 10.0**exponent)
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - 20}" stroke="#dddddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**exponent:g}</text>')
    for exponent in range(math.ceil(least), math.floor(most) + 1):
        x, _ = place(10.0**exponent, 10.0**low)
        lines.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{10**exponent:,}</text>')
    copies = sorted(place(n_bytes, bandwidth) for variant, n_bytes, bandwidth, _ in points if variant == "copy")
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in copies)
    lines.append(f'<path d="M{path}" stroke="black" fill="none"><title>copy</title></path>')
    for variant, n_bytes, bandwidth, label in points:
        if variant in _COLOURS:
            x, y = place(n_bytes, bandwidth)
            circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_COLOURS[variant]}" fill-opacity="0.7">'
            lines.append(f"{circle}<title>{label}: {variant}, {bandwidth:.1f} GB/s</title></circle>")
    for k, (variant, colour) in enumerate({**_COLOURS, "copy": "black"}.items()):
        lines.append(f'<text x="{_LEFT + 120 * k}" y="20" fill="{colour}">{variant}</text>')
    lines.append(f'<text x="{_WIDTH // 2}" y="{_HEIGHT - 10}" text-anchor="middle">bytes moved; upwards: GB/s</text>')
    return "\n".join([*lines, "</svg>", ""])


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    results = {"command": " ".join(["python benchmarks/kernels.py", *arguments]), "machine": machine.describe()}
    if options.device == "cuda":
        results["device"] = torch.cuda.get_device_name()
    rows: list[dict[str, Any]] = []
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        for size in options.sizes:
            for dtype in options.dtypes:
                print(f"{name}, {size}, {dtype}", file=sys.stderr, flush=True)
                rows.append(measure(name, size, dtype, options))
                # After every kernel, so that an interrupted run leaves results.
                text = json.dumps({**results, "kernels": rows}, indent=1)
                options.output.write_text(text + "\n", encoding="utf-8")
    print(table(rows))
    options.output.with_suffix(".svg").write_text(plot(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
