"""How often a compiled function is stale after a change between two calls: Treadle and torch.compile on the same programs.

    python benchmarks/stale_calls.py [--cases 12]       # to benchmarks/results/stale_calls.json, table on the terminal

For every kind of change that the soundness fuzzer knows (tools/soundness/changes.py) there are some random worlds; in each, `f` is called,
something is changed, and `f` is called again. A program is *wrong* if the compiled function's results, exceptions, output, random state
or effects differ from eager's. Both compilers run their tracer with a backend that runs the graph as it is.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
from markdown_table import markdown  # noqa: E402
from soundness.changes import IN_PROCESS, IN_WORLD  # noqa: E402
from soundness.run import Case, run_case  # noqa: E402
from soundness.world import Maker, World  # noqa: E402

LINES = 14


def make_case(template: str, kind: str, seed: int) -> Case:
    """A world whose function reads much of it; a call, the change, the same call."""
    maker = Maker(random.Random(seed))
    world = maker.world()
    reads = tuple(
        f"try:\n        out.append({maker.read()})\n    except Exception as error:\n        out.append(type(error).__name__)"
        for _ in range(LINES)
    )
    call = ("call", maker.call())
    return Case(
        World(world.chunks, (*reads, "x = m0(x)", *world.lines[:2])), (call, (kind, maker.fill(template)), call)
    )


def with_treadle(function: Any) -> Any:
    import treadle

    treadle.reset()
    return treadle.compile(function, backend="eager")


def with_torch(function: Any) -> Any:
    import torch

    torch._dynamo.reset()
    return torch.compile(function, backend="eager")


COMPILERS: dict[str, Callable[[Any], Any]] = {"treadle": with_treadle, "torch.compile": with_torch}


def measure(cases: int) -> dict[str, dict[str, Counter[str]]]:
    """Section -> compiler -> {"wrong": n, "programs": n}."""
    sections = {name: [("world", text) for text in texts] for name, texts in IN_WORLD.items()}
    sections["state of the process"] = [("process", text) for text in IN_PROCESS]
    found: dict[str, dict[str, Counter[str]]] = {}
    for section, changes in sections.items():
        found[section] = {name: Counter() for name in COMPILERS}
        for position, (kind, template) in enumerate(changes):
            for seed in range(cases):
                case = make_case(template, kind, seed * 1000 + position)
                for name, compile_function in COMPILERS.items():
                    found[section][name]["programs"] += 1
                    found[section][name]["wrong"] += run_case(case, compile_function) is not None
        print(section, {name: dict(counts) for name, counts in found[section].items()}, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=12, help="programs per kind of change")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "stale_calls.json")
    given = parser.parse_args()
    found = measure(given.cases)
    rows = [
        [section, str(sides["treadle"]["programs"]), *(str(counts["wrong"]) for counts in sides.values())]
        for section, sides in found.items()
    ]
    totals = [sum(int(row[k]) for row in rows) for k in (1, 2, 3)]
    rows.append(["all", *map(str, totals)])
    print(markdown(["change of", "programs", *(f"{name}: wrong" for name in COMPILERS)], rows))
    report = {"machine": machine.describe(), "cases": given.cases, "sections": found}
    given.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
