"""Eager, torch.compile and Treadle side by side on the twelve models: compile time, start-up, speed, memory, graphs.

    python benchmarks/models.py                              everything (about 20 minutes), to benchmarks/results/models.json
    python benchmarks/models.py --models bert resnet18       some models
    python benchmarks/models.py --variants eager treadle     some variants
    python benchmarks/models.py --phases cold steady         without the warm start

Cold: a fresh process with empty caches, seconds from after `import torch` and building the model to the first result.
Warm: the same in a second process with the caches filled. Steady: all variants interleaved in one process, medians.
All runs use one OpenMP thread. Memory: the peak resident size of the cold process.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import compare  # noqa: E402
import machine  # noqa: E402
import readme_table  # noqa: E402
import zoo  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "models.json"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=list(zoo.SCENARIOS), default=list(zoo.SCENARIOS), metavar="MODEL"
    )
    parser.add_argument("--variants", nargs="+", choices=compare.VARIANTS, default=list(compare.VARIANTS))
    parser.add_argument("--phases", nargs="+", choices=compare.PHASES, default=list(compare.PHASES))
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    results = {"command": " ".join(["python benchmarks/models.py", *arguments]), "machine": machine.describe()}
    rows: list[compare.Row] = []
    compare.write_bytecode()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name in options.models:
        rows.append(
            compare.compare(
                name, options.variants, options.phases, lambda step: print(step, file=sys.stderr, flush=True)
            )
        )
        # After every model, so that an interrupted run leaves results.
        text = json.dumps({**results, "models": [asdict(row) for row in rows]}, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")
    print(readme_table.models_tables(rows))
    for row in rows:
        for what, message in row.errors.items():
            print(f"{row.name}: {what}: {message}")
    return 1 if any(row.errors for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
