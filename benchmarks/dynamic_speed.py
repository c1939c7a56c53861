"""The cost of symbolic sizes at run time: a dynamic compile run at a shape, against a static compile of that shape.

    python benchmarks/dynamic_speed.py                         everything, to benchmarks/results/dynamic_speed.json
    python benchmarks/dynamic_speed.py --cases softmax cat     the memory-bound cases whose names contain one of these words
    python benchmarks/dynamic_speed.py --no-models             the memory-bound cases only;  --models resnet18 bert: these models
    python benchmarks/dynamic_speed.py --torch                 torch.compile, static and dynamic, beside them

Every case runs in several sizes, once with its batch symbolic and once with all sizes symbolic. The dynamic callables are
compiled at other sizes than they are timed at: `dynamic` with the kernels that serve all sizes, `hot` with kernels specialised to the
timed sizes (`treadle_codegen.specialise_now` makes them at once). The static and the dynamic callables are called in turn in one
process on one thread. A figure is the median over rounds of the ratio to static. A round compares the best of a few neighbouring
calls, because other processes on the machine disturb longer comparisons. Before timing, results are compared with eager's, and those
of `hot` with those of `dynamic` bit by bit.

A case whose static call takes 10 us or more must have a ratio of `hot` of at most 1.05. In shorter cases the call itself dominates;
the report has microseconds beside the ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import zoo  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "dynamic_speed.json"
TOLERANCE = 1e-4  # of the largest element of a result
LIMIT = 1.05  # of hot to static
LONG_ENOUGH = 1e-5  # seconds of a static call; below, what is measured is the call, not the kernels
SAMPLE_SECONDS = 3e-4  # a sample repeats a short call until it takes this long
MODELS = ("resnet18", "mobilenetv3_large_100", "efficientnet_b0", "convnext_atto", "vit_tiny_patch16_224", "vit",
          "mixer_s16_224", "swin_tiny_patch4_window7_224", "bert", "gpt2", "llama", "t5")  # fmt: skip

TOKEN_MODELS = ("bert", "gpt2", "llama", "t5")

Dim = str | int
Sizes = Mapping[str, int]


# ------------------------------------------------------------------------------------------------ the cases


@dataclass(frozen=True)
class Spec:
    """One input: its dimensions (a name is looked up in the case's sizes), and the kind of its elements."""

    dims: tuple[Dim, ...]
    kind: str = "float"  # float, index (into `limit` rows), mask, channels_last
    limit: Dim = 0

    def make(self, sizes: Sizes) -> torch.Tensor:
        shape = [sizes[d] if isinstance(d, str) else d for d in self.dims]
        if self.kind == "index":
            return torch.randint(sizes[self.limit] if isinstance(self.limit, str) else self.limit, shape)
        if self.kind == "mask":
            return torch.rand(shape) > 0.3
        x = torch.randn(shape)
        return x.contiguous(memory_format=torch.channels_last) if self.kind == "channels_last" else x

    def dynamic(self, names: frozenset[str]) -> list[int]:
        """Positions of the dimensions with these names."""
        return [k for k, d in enumerate(self.dims) if d in names]


@dataclass(frozen=True)
class Case:
    """A memory-bound function: `n` names its batch or rows, other names are inner sizes."""

    name: str
    function: Callable[..., Any]
    specs: tuple[Spec, ...]
    sizes: tuple[Sizes, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(d for spec in self.specs for d in spec.dims if isinstance(d, str))


def _rows(*inner: int) -> tuple[Sizes, ...]:
    """Row lengths `inner`, with numbers of rows that fit the first-level cache, the second-level cache, and neither."""
    return tuple({"n": max(2, total // c), "c": c} for c in inner for total in (6_000, 200_000, 4_000_000))


def _images(*sizes: tuple[int, int, int]) -> tuple[Sizes, ...]:
    return tuple({"n": n, "h": h, "w": w} for n, h, w in sizes)


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def _batch_norm(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.relu(F.batch_norm(x, m, v.abs(), w, b))


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def _geglu(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return F.gelu(a) * b


X = Spec(("n", "c"))
ROW = Spec(("c",))
LAST = Spec(("n", 32, "h", "w"), "channels_last")
IMAGE = Spec(("n", 32, "h", "w"))
CHANNEL = Spec((32,))
SMALL_IMAGES = _images((2, 14, 14), (4, 56, 56), (7, 112, 111))
HEADS: tuple[Sizes, ...] = ({"n": 2, "s": 49}, {"n": 2, "s": 128}, {"n": 8, "s": 127}, {"n": 8, "s": 512})

CASES: tuple[Case, ...] = (
    Case("pointwise chain", lambda x, y: torch.relu(x * 2 + y) * torch.sigmoid(y), (X, X), _rows(49, 127, 768)),
    Case("add", lambda x, y: x + y, (X, X), _rows(768, 1000)),
    Case("bias gelu", lambda x, b: F.gelu(x + b), (X, ROW), _rows(49, 768, 1000)),
    Case("residual layer norm", lambda x, y, w, b: F.layer_norm(x + y, (x.shape[-1],), w, b), (X, X, ROW, ROW),
         _rows(49, 127, 768)),
    Case("rms norm", lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, (X, ROW), _rows(127, 768)),
    Case("softmax", lambda x: x.softmax(-1), (X,), _rows(17, 49, 127, 1000)),
    Case("masked softmax", lambda x, m: (x * 0.125).masked_fill(m, float("-inf")).softmax(-1),
         (Spec(("n", 4, "s", "s")), Spec(("n", 1, "s", "s"), "mask")), HEADS),
    Case("softmax of columns", lambda x: x.softmax(1), (Spec(("n", "r", "c")),),
         ({"n": 3, "r": 12, "c": 49}, {"n": 16, "r": 64, "c": 127}, {"n": 64, "r": 100, "c": 300})),
    Case("log softmax", lambda x: F.log_softmax(x, -1), (X,), _rows(49, 1000)),
    Case("cross entropy", lambda x, t: F.cross_entropy(x, t), (X, Spec(("n",), "index", "c")), _rows(127, 1000)),
    Case("row sums", lambda x: x.sum(-1), (X,), _rows(17, 127, 1000)),
    Case("column sums", lambda x: x.sum(0), (X,), _rows(17, 127, 1000)),
    Case("row maxima", lambda x: x.amax(-1), (X,), _rows(127, 1000)),
    Case("column maxima", lambda x: x.amax(0), (X,), _rows(127, 1000)),
    Case("sum of all", lambda x: (x * x).sum(), (X,), _rows(127, 1000)),
    Case("mean over tokens", lambda x: x.mean(1), (Spec(("n", "s", "c")),),
         ({"n": 2, "s": 16, "c": 192}, {"n": 4, "s": 197, "c": 192}, {"n": 16, "s": 197, "c": 768})),
    Case("mean over channels-last image", lambda x: x.mean((2, 3)), (LAST,), SMALL_IMAGES),
    Case("variance over channels-last image", lambda x: x.var((2, 3), keepdim=True), (LAST,), SMALL_IMAGES),
    Case("group norm", lambda x, w, b: F.group_norm(x, 8, w, b), (IMAGE, CHANNEL, CHANNEL), SMALL_IMAGES),
    Case("batch norm relu", _batch_norm, (IMAGE, CHANNEL, CHANNEL, CHANNEL, CHANNEL), SMALL_IMAGES),
    Case("batch norm relu, channels last", _batch_norm, (LAST, CHANNEL, CHANNEL, CHANNEL, CHANNEL), SMALL_IMAGES),
    Case("transpose", lambda x: x.t().contiguous(), (X,), _rows(49, 127, 768)),
    Case("heads apart", lambda x: x.view(x.shape[0], x.shape[1], 4, 64).transpose(1, 2).contiguous(),
         (Spec(("n", "s", 256)),), HEADS),
    Case("heads together", lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[2], 256) * 2,
         (Spec(("n", 4, "s", 64)),), HEADS),
    Case("to channels last", lambda x: (x * 2).contiguous(memory_format=torch.channels_last), (IMAGE,), SMALL_IMAGES),
    Case("patches", lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, 32) + 1, (IMAGE,), SMALL_IMAGES),
    Case("cat of rows", lambda x, y: torch.cat((x, y)) * 2, (X, X), _rows(127, 768)),
    Case("cat of columns", lambda x, y: torch.cat((x, y), 1) * 2, (X, X), _rows(49, 768)),
    Case("pad", lambda x: F.pad(x, (1, 1, 1, 1)), (IMAGE,), SMALL_IMAGES),
    Case("roll", lambda x: torch.roll(x, (-3, -3), (2, 3)) + 1, (IMAGE,), SMALL_IMAGES),
    Case("embedding", lambda i, w: F.embedding(i, w) * 2, (Spec(("n", "s"), "index", 4000), Spec((4000, "c"))),
         ({"n": 2, "s": 17, "c": 127}, {"n": 4, "s": 128, "c": 256}, {"n": 16, "s": 128, "c": 768})),
    Case("gather", lambda x, i: x.gather(1, i), (X, Spec(("n", "c"), "index", "c")), _rows(127, 1000)),
    Case("rotary embedding", _rotary, (Spec(("n", 8, "s", 64)), Spec(("s", 64)), Spec(("s", 64))), HEADS),
    Case("swiglu", _swiglu, (Spec(("n", 1376)),), ({"n": 4}, {"n": 127}, {"n": 2048})),
    Case("geglu", _geglu, (Spec(("n", 2048)),), ({"n": 3}, {"n": 127}, {"n": 2048})),
    Case("max pooling", lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,), SMALL_IMAGES),
    Case("max pooling, channels last", lambda x: F.max_pool2d(x, 3, 2, 1), (LAST,), SMALL_IMAGES),
    Case("average pooling", lambda x: F.avg_pool2d(x, 2), (IMAGE,), _images((2, 14, 14), (4, 56, 56), (7, 112, 112))),
    Case("global pooling", lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,), SMALL_IMAGES),
    Case("upsample nearest", lambda x: F.interpolate(x, scale_factor=2.0), (IMAGE,),
         _images((2, 14, 14), (4, 28, 28), (7, 56, 55))),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------ compiling


Forward = Callable[..., Any]


def _clear() -> None:
    import treadle

    treadle.reset()
    treadle.config.raise_internal_errors = True


def treadle_static(function: Any) -> Forward:
    import treadle

    return treadle.compile(function, dynamic=False)


def treadle_dynamic(function: Any) -> Forward:
    """A dynamic compile without shape specialisation."""
    import treadle

    return treadle.compile(function, options={"specialised_shapes": 0})


def treadle_hot(function: Any) -> Forward:
    import treadle

    return treadle.compile(function)


def _specialize() -> None:
    """Compile the specialised kernels now instead of in the background."""
    import treadle_codegen

    treadle_codegen.specialise_now()


def same_bits(one: Any, other: Any) -> bool:
    """Whether two results are equal element by element, NaN included."""
    pairs = zip(zoo.tensors_of(one), zoo.tensors_of(other), strict=True)
    return all(torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)


def mark(tensors: Sequence[torch.Tensor], dims: Sequence[Sequence[int]], torchs: bool) -> None:
    """Mark the dimensions as dynamic for treadle, and for torch.compile if it takes part."""
    import treadle

    for tensor, marked in zip(tensors, dims, strict=True):
        treadle.mark_dynamic(tensor, list(marked))
        for dim in marked if torchs else ():
            torch._dynamo.mark_dynamic(tensor, dim)


def deviation(expected: Any, found: Any) -> float:
    """Largest difference relative to the largest element; infinite when shapes, strides or dtypes differ."""
    worst = 0.0
    for want, have in zip(zoo.tensors_of(expected), zoo.tensors_of(found), strict=True):
        if (want.shape, want.stride(), want.dtype) != (have.shape, have.stride(), have.dtype):
            return float("inf")
        if want.numel():
            same = torch.where(want == have, torch.zeros_like(want), (want - have).abs())
            scale = want[want.isfinite()].abs().max().item() if want.isfinite().any() else 1.0
            worst = max(worst, same[~(want.isnan() & have.isnan())].max().item() / (scale or 1.0))
    return worst


# ------------------------------------------------------------------------------------------------ timing


def _once(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def ratios(base: Callable[[], object], others: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, Any]:
    """Best `seconds` of every function, and `ratio` to `base`: the median over rounds of the best of a few interleaved samples."""
    functions = {"": base, **others}
    for function in functions.values():
        _once(function, 3)
    repeats = max(1, round(SAMPLE_SECONDS / min(_once(f, 3) for f in functions.values())))
    rounds: list[dict[str, float]] = []
    order, shuffle, end = list(functions), random.Random(0).shuffle, time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 5:
        best = dict.fromkeys(functions, math.inf)
        for _ in range(4):
            shuffle(order)
            for name in order:
                best[name] = min(best[name], _once(functions[name], repeats))
        rounds.append(best)
    return {
        "seconds": {name: min(r[name] for r in rounds) for name in functions},
        "ratio": {name: statistics.median(r[name] / r[""] for r in rounds) for name in others},
    }


def compiles() -> int:
    """The number of graphs that treadle has compiled since `_clear`. A graph that runs in eager counts as a hundred."""
    import treadle

    stats = treadle.stats()
    return stats.graphs + 100 * len(stats.eager_graphs)


def run_case(case: Case, sizes: Sizes, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one case at one size. `mode`: which of its dimensions are symbolic."""
    torch.manual_seed(0)
    tensors = [spec.make(sizes) for spec in case.specs]
    names = case.names & {"n"} if mode == "batch" else case.names
    # Compiled at other sizes than those it is timed at: what it does at its first sizes must not be special.
    first = [spec.make({k: v + 2 if k in names else v for k, v in sizes.items()}) for spec in case.specs]
    mark(first, [spec.dynamic(names) for spec in case.specs], options.torch)
    _clear()
    dynamic = treadle_dynamic(case.function)
    dynamic(*first)
    expected, found = case.function(*tensors), dynamic(*tensors)
    graphs = compiles()
    hot = treadle_hot(case.function)
    hot(*first)
    hot(*tensors)
    _specialize()
    bits = same_bits(found, hot(*tensors))
    static = treadle_static(case.function)
    worst = max(deviation(expected, found), deviation(expected, static(*tensors)))
    others: dict[str, Callable[[], object]] = {"dynamic": lambda: dynamic(*tensors), "hot": lambda: hot(*tensors)}
    if options.torch:
        torch.compiler.reset()
        theirs = torch.compile(case.function, dynamic=False)
        theirs_dynamic = torch.compile(case.function)
        theirs(*tensors)
        theirs_dynamic(*first)
        theirs_dynamic(*tensors)
        others |= {"torch static": lambda: theirs(*tensors), "torch dynamic": lambda: theirs_dynamic(*tensors)}
    figures = ratios(lambda: static(*tensors), others, options.seconds)
    head = {"case": case.name, "sizes": dict(sizes), "mode": mode}
    return {**head, "graphs": graphs, "deviation": worst, "same bits": bits, **figures}


def run_model(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Figures of a model at batch sizes 4 and 1, from one dynamic compile. The batch is symbolic, for token models the sequence too."""
    modes = {"batch": [0], "all": [0, 1]} if name in TOKEN_MODELS else {"batch": [0]}
    model = zoo.SCENARIOS[name].build()
    for mode, dims in modes.items():
        _clear()
        dynamic, hot = treadle_dynamic(model), treadle_hot(model)
        first = zoo.SCENARIOS[name].inputs(3)
        if mode == "all":
            first = {key: t[:, :-7].contiguous() for key, t in first.items()}
        mark(list(first.values()), [dims] * len(first), options.torch)
        dynamic(**first)
        hot(**first)
        for batch in (4, 1):
            inputs = zoo.SCENARIOS[name].inputs(batch)
            expected = model(**inputs)
            before = compiles()
            found = dynamic(**inputs)
            graphs = 1 + compiles() - before
            hot(**inputs)
            _specialize()
            bits = same_bits(found, hot(**inputs))
            static = treadle_static(zoo.SCENARIOS[name].build())
            worst = max(deviation(expected, found), deviation(expected, static(**inputs)))
            others = {"dynamic": partial(dynamic, **inputs), "hot": partial(hot, **inputs)}
            figures = ratios(partial(static, **inputs), others, options.seconds * 4)
            head = {"case": name, "sizes": {"n": batch}, "mode": mode}
            yield {**head, "graphs": graphs, "deviation": worst, "same bits": bits, **figures}


# ------------------------------------------------------------------------------------------------ the table


OURS = ("dynamic", "hot")


def row_of(figures: Mapping[str, Any]) -> str:
    sizes = " ".join(f"{k}={v}" for k, v in figures["sizes"].items())
    ours = "".join(f"{figures['ratio'][name]:8.3f}" for name in OURS)
    others = "".join(f"  {name} {ratio:6.3f}" for name, ratio in figures["ratio"].items() if name not in OURS)
    complaints = "".join(f"  {complaint}" for complaint in complaints_about(figures))
    micro = figures["seconds"][""] * 1e6
    return f"{figures['case']:34}{figures['mode']:6} {sizes:20}{micro:10.1f} us{ours}{others}{complaints}"


def complaints_about(figures: Mapping[str, Any]) -> list[str]:
    """What is wrong with the results of a case. Times do not count."""
    found = [] if figures["deviation"] <= TOLERANCE else [f"WRONG by {figures['deviation']:.1e}"]
    found += [f"compiled {figures['graphs']} times"] if figures["graphs"] != 1 else []
    return found + ([] if figures["same bits"] else ["OTHER BITS when hot"])


def is_judged(figures: Mapping[str, Any]) -> bool:
    """Whether the kernels of a case take longer than its call overhead."""
    return figures["seconds"][""] >= LONG_ENOUGH


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Number and ratios to static of the judged cases and of the others; for the others also microseconds above static."""
    groups = {"memory-bound": [r for r in rows if is_judged(r)], "call overhead": [r for r in rows if not is_judged(r)]}
    found: dict[str, Any] = {}
    for group, members in groups.items():
        found[group] = {"cases": len(members)}
        for name in OURS if members else ():
            ratios_of = [r["ratio"][name] for r in members]
            above = [(r["ratio"][name] - 1) * r["seconds"][""] * 1e6 for r in members]
            found[group][name] = {
                "geometric_mean": math.exp(statistics.fmean(map(math.log, ratios_of))),
                f"above_{LIMIT}": sum(ratio > LIMIT for ratio in ratios_of),
                "worst": max(ratios_of),
            }
            if group == "call overhead":
                found[group][name] |= {"mean_microseconds": statistics.fmean(above), "worst_microseconds": max(above)}
    return found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help="words; only cases whose name contains one of them")
    parser.add_argument("--modes", nargs="+", choices=("batch", "all"), default=["batch", "all"])
    parser.add_argument("--models", nargs="*", choices=list(zoo.SCENARIOS), default=None, metavar="MODEL")
    parser.add_argument("--no-models", action="store_true")
    parser.add_argument("--torch", action="store_true", help="time torch.compile too")
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing per case (models take four times that)")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 if every result is right and no judged ratio of `hot` exceeds 1.05, else 1."""
    options = parse(arguments)
    torch.set_num_threads(1)
    words = options.cases
    cases = [c for c in CASES if (words is None and options.models is None) or any(w in c.name for w in words or ())]
    models = (
        () if options.no_models else options.models if options.models is not None else MODELS if words is None else ()
    )
    results: dict[str, Any] = {
        "command": " ".join(["python benchmarks/dynamic_speed.py", *arguments]),
        "machine": machine.describe(),
        "rows": [],
    }
    with torch.no_grad():
        for figures in _all_figures(cases, models, options):
            print(row_of(figures), flush=True)
            results["rows"].append(figures)
            results["summary"] = summary(results["rows"])
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results.get("summary"), indent=1))
    return int(any(complaints_about(r) or (is_judged(r) and r["ratio"]["hot"] > LIMIT) for r in results["rows"]))


def _all_figures(cases: Sequence[Case], models: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for case in cases:
        for sizes in case.sizes:
            for mode in options.modes:
                if mode == "batch" or case.names - {"n"}:
                    yield run_case(case, sizes, mode, options)
    for name in models:
        yield from run_model(name, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
