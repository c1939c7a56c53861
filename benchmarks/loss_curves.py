"""Losses of 20 training steps of the twelve models, Treadle beside eager, with SGD and AdamW.

    python benchmarks/loss_curves.py                               to benchmarks/results/loss_curves.json
    python benchmarks/loss_curves.py --models bert gpt2 --steps 5

Both start from the same weights and the same random state: dropout and batch norm are on. The whole step (forward, loss, backward,
clipping of gradients, optimizer) is one compiled function. `eager again` is eager with its float32 noise: the weights start one
rounding apart, which is how far two correct runs drift away from each other.

deviation   the largest |loss - eager's| over the largest of eager's losses
masks       whether the random generator stands where eager leaves it
graphs      graphs that the function was compiled to; recompiles among them
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

import machine  # noqa: E402
import training_curves  # noqa: E402
import zoo  # noqa: E402
from markdown_table import markdown  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "loss_curves.json"


def table(models: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    rows = [
        [name, optimizer, f"{row['eager'][0]:.4g}", f"{row['eager'][-1]:.4g}", f"{row['treadle'][-1]:.4g}"]
        + [f"{row['deviation']:.1e}", f"{row['deviation of eager again']:.1e}", str(row["masks"]), str(row["graphs"])]
        + [" ".join([*row["breaks"], *row["eager graphs"]])]
        for name, rows in models.items()
        for optimizer, row in rows.items()
    ]
    headings = "model,optimizer,first loss,last: eager,last: treadle,deviation,eager again,masks,graphs,breaks"
    return markdown(headings.split(","), rows)


def main(arguments: Sequence[str]) -> int:
    """0 where all curves follow eager's (within 1 % or a hundred times eager's own drift) with eager's masks, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(zoo.SCENARIOS), default=list(zoo.SCENARIOS))
    parser.add_argument(
        "--optimizers", nargs="+", choices=list(training_curves.OPTIMIZERS), default=list(training_curves.OPTIMIZERS)
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    models: dict[str, dict[str, Any]] = {}
    for name in options.models:
        models[name] = {
            optimizer: training_curves.compare(name, optimizer, options.steps) for optimizer in options.optimizers
        }
        for optimizer, row in models[name].items():
            figures = {key: value for key, value in row.items() if key not in ("eager", "eager again", "treadle")}
            print(f"{name} {optimizer}: {figures}", file=sys.stderr, flush=True)
        command = " ".join(["python benchmarks/loss_curves.py", *arguments])
        results = {"command": command, "machine": machine.describe(), "models": models}
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(table(models))
    rows = [row for by_optimizer in models.values() for row in by_optimizer.values()]
    follows = [row["masks"] and row["deviation"] <= max(0.01, 100 * row["deviation of eager again"]) for row in rows]
    return int(not all(follows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
