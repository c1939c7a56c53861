"""Programs that break into several graphs: time of eager over time of Treadle, which is not to be below 0.95.

    python benchmarks/broken_programs.py                        all programs, in inference and with a backward pass
    python benchmarks/broken_programs.py kmeans moe             some of them
    python benchmarks/broken_programs.py --compile-all          with the option leave_unprofitable=False, to see what it is good for

Each program decides on values of tensors, so that no compiler has the whole of it. The sizes are those of small problems, where the
pieces cost the most. Times are the best of several calls, eager and Treadle in turns, one OpenMP thread. `left` says that Treadle leaves
the program to Python.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "broken_programs.json"
LEAST = 0.95
Program = Callable[..., Any]
PROGRAMS: dict[str, tuple[Program, Callable[[], tuple[torch.Tensor, ...]]]] = {}


def program(*shapes: tuple[int, ...]) -> Callable[[Program], Program]:
    """Register a program of random tensors with these shapes."""

    def register(function: Program) -> Program:
        PROGRAMS[function.__name__] = (function, lambda: tuple([torch.randn(shape) for shape in shapes]))
        return function

    return register


@program((60, 4))
def kmeans(x: Any) -> Any:
    centres = x[:3].clone()
    for _ in range(5):
        nearest = torch.cdist(x, centres).argmin(1)
        for k in range(3):
            if (nearest == k).any():
                centres = torch.where(torch.arange(3)[:, None] == k, x[nearest == k].mean(0), centres)
    return centres, nearest


@program((5, 3))
def adaptive_heun(y: Any) -> Any:
    t, h, n = 0.0, 0.1, 0
    while t < 1.0 and n < 60:
        k1 = -y + math.sin(t)
        k2 = -(y + h * k1) + math.sin(t + h)
        error = (h / 2 * (k2 - k1)).abs().max().item()
        if error < 1e-2:
            y, t = y + h / 2 * (k1 + k2), t + h
        h = min(h * min(2.0, max(0.3, 0.9 * math.sqrt(1e-2 / (error + 1e-9)))), 1.0 - t + 1e-9)
        n += 1
    return y


@program((100,))
def metropolis(x: Any) -> Any:
    state, accepted = torch.zeros(()), 0
    for i in range(20):
        proposal = state + x[i] * 0.5
        if torch.rand(()) < torch.exp((state**2 - proposal**2) / 2):
            state, accepted = proposal, accepted + 1
    return state, accepted


@program((10, 4), (4, 4))
def fixed_point(z: Any, w: Any) -> Any:
    x = torch.zeros_like(z)
    for _ in range(50):
        new = torch.tanh(x @ w * 0.1 + z)
        if (new - x).norm() < 1e-4:
            break
        x = new
    return x


@program((6, 16), (16, 4))
def mixture_of_experts(x: Any, gate: Any) -> Any:
    weights, chosen = torch.topk((x @ gate).softmax(-1), 2)
    result = torch.zeros_like(x)
    for expert in range(4):
        rows, places = torch.where(chosen == expert)
        if rows.numel():
            result = result.index_add(0, rows, torch.tanh(x[rows] * (expert + 1)) * weights[rows, places, None])
    return result


@program((20, 4), (20,))
def suppression(boxes: Any, scores: Any) -> Any:
    low, high = torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])
    order, kept = scores.argsort(descending=True), []
    while order.numel() > 0:
        first, rest = order[0], order[1:]
        kept.append(scores[first])
        size = (torch.minimum(high[first], high[rest]) - torch.maximum(low[first], low[rest])).clamp(min=0).prod(1)
        areas = (high - low).prod(1)
        order = rest[size / (areas[first] + areas[rest] - size) <= 0.5]
    return torch.stack(kept)


@program((3, 10))
def beam_search(logits: Any) -> Any:
    scores, beams = torch.zeros(3), [[] for _ in range(3)]
    for step in range(4):
        total = (scores[:, None] + torch.log_softmax(logits * (step + 1), -1)).view(-1)
        scores, indices = total.topk(3)
        beams = [[*beams[i // 10], i % 10] for i in indices.tolist()]
    return scores, beams


@program((12, 6))
def conjugate_gradients(m: Any) -> Any:
    a, b = m.t() @ m + torch.eye(6), m[0]
    x, r = torch.zeros(6), b
    p, old = r, r @ r
    for _ in range(20):
        ap = a @ p
        alpha = old / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        if new.sqrt() < 1e-5:
            break
        p, old = r + new / old * p, new
    return x


@program((8,))
def line_search(x: Any) -> Any:
    def value(at: Any) -> Any:
        return (at**4).sum() - (at**2).sum()

    for _ in range(5):
        gradient, step, here = 4 * x**3 - 2 * x, 1.0, value(x)
        while value(x - step * gradient) > here - 0.5 * step * (gradient**2).sum() and step > 1e-4:
            step /= 2
        x = x - step * gradient
    return x


@program((7,))
def bisection(x: Any) -> Any:
    low, high = torch.full_like(x, -5.0), torch.full_like(x, 5.0)
    while (high - low).max() > 1e-3:
        middle = (low + high) / 2
        above = middle**3 + middle > x
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2 + x * 0


@program((30, 8), (8, 2))
def early_stopping(x: Any, w: Any) -> Any:
    best, waited = math.inf, 0
    for _ in range(15):
        loss = F.softplus(x @ w).mean()
        w = w - 0.1 * x.t() @ torch.sigmoid(x @ w) / 30
        if loss.item() < best - 1e-3:
            best, waited = loss.item(), 0
        elif (waited := waited + 1) > 2:
            break
    return w


@program((4, 12))
def sample_until(logits: Any) -> Any:
    tokens = []
    for _ in range(6):
        token = torch.multinomial(torch.softmax(logits / 0.7, -1), 1)
        tokens.append(token)
        if (token == 0).all():
            break
        logits = logits.roll(1, -1) * 0.9
    return torch.cat(tokens, 1), logits


@program((16, 16))
def power_iteration(a: Any) -> Any:
    v, old = F.normalize(torch.ones(16), dim=0), 0.0
    for _ in range(30):
        v = F.normalize(a @ v, dim=0)
        eigenvalue = (v @ a @ v).item()
        if abs(eigenvalue - old) < 1e-3:
            break
        old = eigenvalue
    return v


@program((40, 3))
def outliers(x: Any) -> Any:
    for _ in range(3):
        distance = (x - x.mean(0)).norm(dim=1)
        keep = distance < distance.mean() + 1.5 * distance.std()
        if keep.all():
            break
        x = x[keep]
    return x.mean(0), x.std(0)


@program((25, 2))
def shift_to_modes(x: Any) -> Any:
    points = x
    for _ in range(6):
        weights = torch.exp(-(torch.cdist(points, x) ** 2))
        moved = weights @ x / weights.sum(1, keepdim=True)
        if (moved - points).abs().max() < 1e-3:
            break
        points = moved
    return points


@program((3, 5, 6), (6, 6))
def variable_lengths(x: Any, w: Any) -> Any:
    result = []
    for row in x:
        length = int((row[:, 0] > -0.5).sum())
        result.append(torch.tanh(row[:length] @ w).sum(0))
    return torch.stack(result)


@program((9,))
def newton_with_checks(x: Any) -> Any:
    y = torch.ones_like(x)
    for _ in range(8):
        f = y**3 - x.abs() - 1
        if not bool(torch.isfinite(f).all()):
            raise ArithmeticError("diverged")
        y = y - f / (3 * y**2)
    return y


@program((2, 64))
def calibrate(x: Any) -> Any:
    low, high = float(x.min()), float(x.max())
    scale = max(abs(low), abs(high)) / 127
    quantised = torch.clamp(torch.round(x / scale), -128, 127)
    if float((quantised * scale - x).abs().max()) > scale:
        quantised = torch.round(x / scale)
    return quantised * scale, x * 1.0


@program((6, 6))
def tree(x: Any) -> Any:
    def descend(rows: Any, depth: int) -> Any:
        if depth == 0 or rows.shape[0] < 2:
            return rows.mean(0) if rows.shape[0] else x[0]
        mask = rows[:, depth] > rows[:, depth].median()
        return descend(rows[mask], depth - 1) + descend(rows[~mask], depth - 1) * 0.5

    return descend(x, 3)


@program((8, 32), (32, 32), (32, 32))
def adaptive_depth(x: Any, a: Any, b: Any) -> Any:
    for _ in range(6):
        x = x + torch.tanh(x @ a * 0.1) @ b * 0.1
        x = F.layer_norm(x, (32,))
        if x.softmax(-1).amax(-1).mean() > 0.9:
            break
    return x


# ---- measuring


def run(function: Program, tensors: Sequence[torch.Tensor], train: bool) -> Any:
    """One call, with a backward pass if `train`."""
    torch.manual_seed(7)
    if not train:
        with torch.no_grad():
            return function(*tensors)
    given = [tensor.clone().requires_grad_() for tensor in tensors]
    result = function(*given)
    sums = [leaf.sum() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if sums:
        torch.stack(sums).sum().backward()
    return result, [tensor.grad for tensor in given]


def why_different(expected: Any, found: Any) -> str | None:
    """The first difference of two results; None if there is none but rounding."""
    pairs = list(zip(tree_leaves(expected), tree_leaves(found), strict=True))
    for one, other in pairs:
        if isinstance(one, torch.Tensor):
            if not torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True):
                return f"{one} and {other}"
        elif one != other:
            return f"{one} and {other}"
    return None


def measure(name: str, train: bool, compile_all: bool) -> dict[str, Any]:
    """The row of one program."""
    import treadle

    treadle.reset()
    function, make = PROGRAMS[name]
    torch.manual_seed(0)
    tensors = make()
    compiled = treadle.compile(function, options={"leave_unprofitable": not compile_all})
    expected = run(function, tensors, train)
    wrong = next(filter(None, (why_different(expected, run(compiled, tensors, train)) for _ in range(5))), None)
    best = {"eager": math.inf, "treadle": math.inf}
    for _ in range(40):
        for key, called in (("eager", function), ("treadle", compiled)):
            start = time.perf_counter()
            run(called, tensors, train)
            best[key] = min(best[key], time.perf_counter() - start)
    stats = treadle.stats()
    return {
        "program": name,
        "mode": "train" if train else "inference",
        "ratio": round(best["eager"] / best["treadle"], 2),
        "eager_us": round(best["eager"] * 1e6),
        "graphs": stats.graphs,
        "left": any("too small" in text for text in stats.skipped),
        "wrong": wrong,
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--compile-all", action="store_true", help="compile what costs more than it saves, too")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.programs if name not in PROGRAMS]
    if unknown:
        parser.error(f"unknown programs: {', '.join(unknown)}")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    import machine

    torch.set_num_threads(1)
    rows = []
    for name in options.programs or PROGRAMS:
        for train in (False, True):
            row = measure(name, train, options.compile_all)
            rows.append(row)
            shown = f"{row['ratio']:6.2f} x eager ({row['eager_us']} us), {row['graphs']} graphs"
            print(f"{name:20} {row['mode']:10}{shown}{', left' if row['left'] else ''}", flush=True)
            if row["wrong"]:
                print(f"    wrong: {row['wrong']}")
    head = {"command": " ".join(["python benchmarks/broken_programs.py", *arguments]), "machine": machine.describe()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    slow = [row for row in rows if row["ratio"] < LEAST]
    print(f"{len(rows)} rows, {len(slow)} below {LEAST}: {', '.join(row['program'] for row in slow) or 'none'}")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
