"""What a memory budget costs: milliseconds per training step of GPT-2 against MiB kept from forward to backward.

    python benchmarks/memory_budget.py                       GPT-2, to benchmarks/results/memory_budget.json and .svg
    python benchmarks/memory_budget.py --model bert --batch 2

saved  MiB of distinct storages that autograd keeps between forward and backward, parameters left out (`saved_tensors_hooks`)
step   seconds for forward, loss and backward in training mode; eager and all budgets in one process, calls interleaved, medians
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import machine  # noqa: E402
import measure  # noqa: E402
import training  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown, number  # noqa: E402

OUTPUT = ROOT / "benchmarks" / "results" / "memory_budget.json"
BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def measure_model(name: str, batch: int, seconds: float) -> dict[str, dict[str, float]]:
    """Figures of eager ("eager") and of every budget ("1.0", ...)."""
    import treadle

    scenario = zoo.SCENARIOS[name]
    steps: dict[str, training.Step] = {}
    figures: dict[str, dict[str, float]] = {}
    for variant in ("eager", *map(str, BUDGETS)):
        torch.manual_seed(0)
        model = scenario.build().train()
        forward: Any = model
        if variant != "eager":
            forward = treadle.compile(model, options={"memory_budget": float(variant)})
        steps[variant] = training.training_step(model, forward, scenario.inputs(batch))
        steps[variant]()
        figures[variant] = {"saved_mib": training.saved_mebibytes(model, steps[variant])}
    for variant, median in measure.interleaved_medians(steps, seconds, least=8).items():
        figures[variant]["step"] = median
    return figures


def table(figures: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        [variant, number(found["saved_mib"], 1), number(found["step"], 1, 1e3)] for variant, found in figures.items()
    ]
    return markdown(["memory_budget", "saved MiB", "ms per step"], rows)


def plot(name: str, figures: Mapping[str, Mapping[str, float]]) -> str:
    """An SVG of the curve: MiB to the right, milliseconds upwards, eager as a cross."""
    width, height, left, bottom = 640, 360, 70, 50
    points = {variant: (found["saved_mib"], 1e3 * found["step"]) for variant, found in figures.items()}
    largest_x = 1.1 * max(x for x, _ in points.values())
    largest_y = 1.15 * max(y for _, y in points.values())

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (width - left - 20) * x / largest_x
        return round(across, 1), round((height - bottom) * (1 - y / largest_y), 1)

    curve = [place(*points[variant]) for variant in figures if variant != "eager"]
    text = 'font-family="sans-serif" font-size="12" fill="#333"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{name}: time of a training step against memory kept for backward</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} 0V{height - bottom}H{width - 20}" fill="none" stroke="#333"/>',
    ]
    for k in range(5):
        x, y = place(largest_x * k / 5, 0)
        lines.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle" {text}>{largest_x * k / 5:.1f}</text>')
        x, y = place(0, largest_y * k / 5)
        lines.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end" {text}>{largest_y * k / 5:.0f}</text>')
    lines.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle" {text}>MiB kept for backward</text>')
    lines.append(
        f'<text x="16" y="{height / 2}" text-anchor="middle" transform="rotate(-90 16 {height / 2})" {text}>ms per step</text>'
    )
    lines.append(
        f'<polyline points="{" ".join(f"{x},{y}" for x, y in curve)}" fill="none" stroke="#1f6feb" stroke-width="2"/>'
    )
    for variant, (x, y) in zip([v for v in figures if v != "eager"], curve, strict=True):
        lines.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="#1f6feb"/>')
        lines.append(f'<text x="{x}" y="{y - 8}" text-anchor="middle" {text}>{variant}</text>')
    x, y = place(*points["eager"])
    lines.append(f'<path d="M{x - 5} {y - 5}l10 10m0 -10l-10 10" stroke="#c0392b" stroke-width="2"/>')
    lines.append(f'<text x="{x}" y="{y - 10}" text-anchor="middle" {text}>eager</text>')
    return "\n".join([*lines, "</svg>", ""])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(zoo.SCENARIOS), default="gpt2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0, help="time to measure, all variants together")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes; the SVG goes beside it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    figures = measure_model(options.model, options.batch, options.seconds)
    results = {
        "command": " ".join(["python benchmarks/memory_budget.py", *arguments]),
        "machine": machine.describe(),
        "model": options.model,
        "batch": options.batch,
        "variants": figures,
    }
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    options.output.with_suffix(".svg").write_text(plot(options.model, figures), encoding="utf-8")
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
