"""How often a program whose state changes in every call is compiled: Treadle and torch.compile on the same programs.

    python benchmarks/changing_state.py [--calls 12]    # to benchmarks/results/changing_state.json, table on the terminal

A program (`changing_state_programs.py`) is called so often, with each compiler's default options, and every result is compared with
eager's. The graphs that the tracer finishes are counted; where no graph breaks, each of them is a version of the program. torch.compile's
backend runs the graph as it is. Treadle generates code: only then does it, by default, run a call that sets up its own state in Python.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import torch  # noqa: E402

import machine  # noqa: E402
from changing_state_programs import PROGRAMS  # noqa: E402
from markdown_table import markdown  # noqa: E402

Compile = Callable[[Any, Callable[[], None]], Any]
_GRAPHS = logging.getLogger("treadle.graph_code")


def with_treadle(function: Any, on_graph: Callable[[], None]) -> Any:
    import treadle

    handler = logging.Handler()
    handler.emit = lambda record: on_graph()
    _GRAPHS.handlers, _GRAPHS.propagate = [handler], False
    _GRAPHS.setLevel(logging.INFO)
    treadle.reset()
    return treadle.compile(function)


def with_torch(function: Any, on_graph: Callable[[], None]) -> Any:
    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        on_graph()
        return gm.forward

    torch._dynamo.reset()
    return torch.compile(function, backend=backend)


COMPILERS: dict[str, Compile] = {"treadle": with_treadle, "torch.compile": with_torch}


def outcome(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a call gives or raises."""
    try:
        return copy.deepcopy(function(*arguments))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, torch.Tensor) and isinstance(expected, torch.Tensor):
        return torch.allclose(found, expected)
    return type(found) is type(expected) and found == expected


def calls_of(function: Any, arguments: Callable[[int], tuple[Any, ...]], calls: int) -> list[Any]:
    """The outcomes of the calls, each made before the next one's arguments."""
    return [outcome(function, arguments(step)) for step in range(calls)]


def run(name: str, compile_with: Compile, calls: int) -> dict[str, Any]:
    """How many graphs are made for a program, and the calls, from 0, whose results differ from eager's."""
    graphs: list[None] = []
    torch.manual_seed(0)
    expected = calls_of(*PROGRAMS[name](), calls)
    torch.manual_seed(0)
    function, arguments = PROGRAMS[name]()
    found = calls_of(compile_with(function, lambda: graphs.append(None)), arguments, calls)
    return {"graphs": len(graphs), "wrong": [k for k in range(calls) if not same(found[k], expected[k])]}


def main() -> None:
    """Count, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=12)
    parser.add_argument("--only", help="programs with this in their names; nothing is written")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "changing_state.json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    names = [name for name in PROGRAMS if given.only is None or given.only in name]
    found = {name: {c: run(name, how, given.calls) for c, how in COMPILERS.items()} for name in names}
    rows = [
        [name, *(f"{side['graphs']}{', wrong' if side['wrong'] else ''}" for side in sides.values())]
        for name, sides in found.items()
    ]
    print(markdown(["state that changes in every call", *(f"{c}: graphs" for c in COMPILERS)], rows))
    if given.only is None:
        report = {"machine": machine.describe(), "calls": given.calls, "programs": found}
        given.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
