"""Compare treadle_shapes with PyTorch's ShapeEnv and plain SymPy on the size queries that compiling real models makes.

    python benchmarks/shapes_figures.py [--models bert gpt2 ...] [--parts queries traces package] [--output FILE]

queries: the recordings of shape_queries.py are replayed on nodes of both engines in one process, interleaved, several rounds. A
round starts as a fresh process does: a new environment, and every cache of both engines empty ("warm": a second environment, with
the caches as the first one left them). Microseconds per arithmetic
operation, per decision that needs no guard, per decision that adds one, and per guard function (made from the environment and called
once, so that nothing is left for later); medians over rounds. SymPy: the same arithmetic and decisions on bare SymPy.
traces: seconds of Treadle's trace phase with static and with dynamic sizes, a fresh process each, medians.
package: import time beyond Python's start, size of the wheel.

One thread. Results go to benchmarks/results/shapes.json.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental import symbolic_shapes as theirs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import shape_queries  # noqa: E402
from shape_queries import KIND, MODELS, Operand, Query, Recording  # noqa: E402
from treadle_shapes import ShapeEnv, Symbol  # noqa: E402
from treadle_shapes.torch import sym_int  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "shapes.json"
PARTS = ("queries", "traces", "package")
ROUNDS = 7
PROCESSES = 5
AIM = 5  # times faster than PyTorch's


# -- the two engines ---------------------------------------------------------------------------------------------------


class Ours:
    """Nodes of treadle_shapes."""

    name = "treadle_shapes"
    modules = ("treadle_shapes",)

    def __init__(self, hints: Sequence[int]) -> None:
        self.env = ShapeEnv()
        self.symbols = [self.env.create_symbol(hint, f"dim {k}") for k, hint in enumerate(hints)]
        self.nodes = [sym_int(self.env, s).node for s in self.symbols]

    def guard_count(self) -> int:
        return len(self.env.guards)

    def guard_function(self) -> Callable[..., Any]:
        return self.env.compile_guards([s for s in self.symbols if isinstance(s, Symbol)])


class Torchs:
    """Nodes of torch.fx.experimental.symbolic_shapes."""

    name = "torch ShapeEnv"
    modules = ("torch.fx.experimental", "torch.utils._sympy", "sympy")

    def __init__(self, hints: Sequence[int]) -> None:
        self.env = theirs.ShapeEnv()
        self.nodes = []
        for k, hint in enumerate(hints):
            source = ConstantSource(f"dim{k}")
            s = self.env.create_symbol(hint, source, dynamic_dim=theirs.DimDynamic.DYNAMIC)
            self.nodes.append(self.env.create_symintnode(s, hint=hint, source=source).node)
        self.symints = [torch.SymInt(node) for node in self.nodes]

    def guard_count(self) -> int:
        return len(self.env.guards)

    def guard_function(self) -> Callable[..., Any]:
        # What `ShapeEnv.evaluate_guards_expression` does with the text, compiled once.
        code = compile(self.env.produce_guards_expression(self.symints) or "True", "guards", "eval")
        names = [f"t{k}" for k in range(len(self.symints))]
        return lambda *sizes: eval(code, theirs.SYMPY_INTERP, {"L": dict(zip(names, sizes, strict=True))})


ENGINES = (Ours, Torchs)


def forget(engine: Any) -> None:
    """Empty every functools cache of an engine's modules, and SymPy's own for PyTorch's."""
    for name, module in list(sys.modules.items()):
        if module is not None and name.startswith(engine.modules):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    if engine is Torchs:
        sympy.core.cache.clear_cache()
    gc.collect()


# -- replaying ---------------------------------------------------------------------------------------------------------

#: seconds and number of calls, by what they were
Spent = dict[str, list[float]]


def replay(engine: Any, recording: Recording, spent: Spent) -> None:
    """Repeat a recording's queries on a new environment."""
    state = engine(recording.hints)
    results: list[Any] = list(state.nodes)
    first = results[0]
    clock = time.perf_counter

    def node_of(operand: Operand | tuple[Operand, ...]) -> Any:
        if not isinstance(operand, Operand):
            return [node_of(part) for part in operand]
        if operand.position is not None:
            return results[operand.position]
        wrap = {bool: "wrap_bool", float: "wrap_float"}.get(type(operand.constant), "wrap_int")
        return getattr(first, wrap)(operand.constant)

    for query in recording.queries:
        operands = [node_of(o) for o in query.operands]
        owner = first if query.method == "sym_sum" or query.method in shape_queries.LAYOUT else operands.pop(0)
        method = getattr(owner, query.method)
        extra = ("", 0) if KIND[query.method] == "decision" and query.method != "bool_" else ()
        before = state.guard_count()
        start = clock()
        result = method(*operands, *extra)
        seconds = clock() - start
        kind = "guards" if state.guard_count() > before else KIND[query.method]
        results.append(result)
        spent[kind][0] += seconds
        spent[kind][1] += 1
    start = clock()
    held = state.guard_function()(*recording.hints)
    spent["guard functions"][0] += clock() - start
    spent["guard functions"][1] += 1
    assert held, f"{engine.name}: the guards do not hold for the sizes they were made with"


def new_spent() -> Spent:
    return {kind: [0.0, 0] for kind in ("arithmetic", "layout", "decision", "guards", "guard functions")}


def measure_recordings(recordings: Sequence[Recording], rounds: int) -> dict[str, dict[str, Any]]:
    """Microseconds per call and number of calls, by engine and kind. `warm`: once more with filled caches."""
    found: dict[tuple[str, bool], list[Spent]] = {
        (engine.name, warm): [] for engine in ENGINES for warm in (False, True)
    }
    for _ in range(rounds):
        for engine in ENGINES:
            cold, warm = new_spent(), new_spent()
            for recording in recordings:
                forget(engine)
                replay(engine, recording, cold)
                replay(engine, recording, warm)
            found[engine.name, False].append(cold)
            found[engine.name, True].append(warm)

    def figure(spents: list[Spent], kind: str) -> float:
        return round(statistics.median(s[kind][0] / s[kind][1] for s in spents) * 1e6, 3)

    table: dict[str, dict[str, Any]] = {}
    for engine in ENGINES:
        cold, warm = found[engine.name, False], found[engine.name, True]
        table[engine.name] = {
            kind: {"microseconds": figure(cold, kind), "warm": figure(warm, kind), "calls": int(cold[0][kind][1])}
            for kind in cold[0]
            if cold[0][kind][1]
        }
    return table


_SYMPY: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "neg": lambda a: -a,
    "mod": sympy.Mod, "floordiv": lambda a, b: sympy.floor(a / b), "int_floordiv": lambda a, b: sympy.floor(a / b),
    "pow_by_natural": lambda a, b: a**b, "sym_min": sympy.Min, "sym_max": sympy.Max, "sym_sum": lambda a: sympy.Add(*a),
    "eq": sympy.Eq, "ne": sympy.Ne, "lt": sympy.Lt, "le": sympy.Le, "gt": sympy.Gt, "ge": sympy.Ge,
    "and_": sympy.And, "or_": sympy.Or, "sym_not": sympy.Not,
}  # fmt: skip


def replay_sympy(recording: Recording, spent: Spent) -> None:
    """Repeat arithmetic and decisions on bare SymPy with integer symbols. A decision substitutes the hints."""
    symbols = [sympy.Symbol(f"s{k}", integer=True, positive=True) for k in range(len(recording.hints))]
    hints = dict(zip(symbols, recording.hints, strict=True))
    results: list[Any] = list(symbols)
    sympy.core.cache.clear_cache()

    def value_of(operand: Any) -> Any:
        if not isinstance(operand, Operand):
            return [value_of(part) for part in operand]
        return sympy.sympify(operand.constant) if operand.position is None else results[operand.position]

    for query in recording.queries:
        operands = [value_of(o) for o in query.operands]
        kind = KIND[query.method]
        start = time.perf_counter()
        if kind == "decision":
            results.append(bool(sympy.sympify(operands[0]).subs(hints)))
        else:
            results.append(_SYMPY[query.method](*operands))
        spent[kind][0] += time.perf_counter() - start
        spent[kind][1] += 1


def measure_sympy(recordings: Sequence[Recording], rounds: int) -> dict[str, Any]:
    spents = []
    for _ in range(rounds):
        spents.append(new_spent())
        for recording in recordings:
            replay_sympy(recording, spents[-1])
    return {
        kind: {"microseconds": round(statistics.median(s[kind][0] / s[kind][1] for s in spents) * 1e6, 3)}
        for kind in ("arithmetic", "decision")
    }


# -- more guards than these models need --------------------------------------------------------------------------------


def many_guards() -> Recording:
    """Twenty decisions on two sizes that each need a guard, as models with many branches record them."""
    queries: list[Query] = []

    def ask(method: str, *operands: int | Operand) -> Operand:
        queries.append(Query(method, tuple(o if isinstance(o, Operand) else Operand(None, o) for o in operands)))
        return Operand(1 + len(queries))

    a, b = Operand(0), Operand(1)
    for k in range(8):
        ask("guard_bool", ask("ne", ask("add", ask("mul", a, k + 2), b), 1000 + k))
    for k in range(4):
        ask("guard_bool", ask("eq", ask("mod", ask("add", a, 3 * k), 2 + k), (HINTS[0] + 3 * k) % (2 + k)))
        ask("guard_bool", ask("gt", ask("mul", ask("add", a, k), b), 20 + 3 * k))
        ask("guard_bool", ask("lt", a if k % 2 else b, 500 - k // 2))
    return Recording(list(HINTS), queries)


HINTS = (60, 11)


# -- traces of Treadle -------------------------------------------------------------------------------------------------

_TRACE = """
import json, sys, time
sys.path.insert(0, {here!r})
import shape_queries, torch, treadle, zoo
torch.set_num_threads(1)
name, dynamic = sys.argv[1], sys.argv[2] == "dynamic"
model = zoo.SCENARIOS[name].build()
sizes = shape_queries._inputs(name, **shape_queries.HINTS)
if dynamic:
    for t in sizes.values():
        treadle.mark_dynamic(t, 0)
        if t.dim() == 2:
            treadle.mark_dynamic(t, 1)
with torch.no_grad():
    treadle.compile(model, dynamic=None if dynamic else False, backend="eager")(**sizes)
stats = treadle.stats()
print(json.dumps({{"trace": stats.seconds["trace"] - stats.seconds.get("backend", 0.0), "graphs": stats.graphs}}))
"""


def trace_seconds(name: str, kind: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", _TRACE.format(here=str(Path(__file__).parent)), name, kind]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure_traces(models: Sequence[str], processes: int) -> dict[str, Any]:
    """Median seconds of the trace phase by model, static and dynamic starts interleaved, and their ratio."""
    found = {}
    for name in models:
        runs: dict[str, list[dict[str, Any]]] = {"static": [], "dynamic": []}
        for _ in range(processes):
            for kind, values in runs.items():
                values.append(trace_seconds(name, kind))
        seconds = {kind: statistics.median(r["trace"] for r in values) for kind, values in runs.items()}
        found[name] = {
            **{kind: round(value, 4) for kind, value in seconds.items()},
            "ratio": round(seconds["dynamic"] / seconds["static"], 2),
            "graphs": runs["dynamic"][0]["graphs"],
        }
        print(f"trace {name:10} {found[name]}", flush=True)
    return found


# -- the package -------------------------------------------------------------------------------------------------------


def measure_package(processes: int) -> dict[str, Any]:
    """Milliseconds of the import beyond Python's start (medians of fresh processes), bytes of the wheel."""
    times: dict[str, list[float]] = {"pass": [], "import treadle_shapes": []}
    for _ in range(4 * processes):
        for statement, values in times.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            values.append(time.perf_counter() - start)
    medians = {statement: statistics.median(values) for statement, values in times.items()}
    with tempfile.TemporaryDirectory() as folder:
        source = ROOT / "packages" / "treadle-shapes"
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder]
        subprocess.run([*command, str(source)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        size = wheel.stat().st_size
    milliseconds = (medians["import treadle_shapes"] - medians["pass"]) * 1e3
    return {"import milliseconds": round(milliseconds, 1), "wheel bytes": size}


# -- everything --------------------------------------------------------------------------------------------------------


def show_queries(results: dict[str, Any]) -> None:
    for name, table in results.items():
        ours, torchs = table[Ours.name], table[Torchs.name]
        for kind in ours:
            if kind not in torchs:
                continue
            plain = table.get("SymPy", {}).get(kind, {}).get("microseconds")
            line = f"{name:10} {kind:16} {ours[kind]['calls']:6} / {torchs[kind]['calls']:6} calls"
            for state in ("microseconds", "warm"):
                a, b = ours[kind][state], torchs[kind][state]
                mark = "" if b >= AIM * a else " (below the aim)"
                line += f" | {'warm ' * (state == 'warm')}{a:8.2f} us, torch {b:8.2f} us: {b / a:5.1f} x{mark}"
            print(line + (f" | SymPy {plain:6.2f} us" if plain else ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="fresh processes per figure of traces")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    results["machine"] = machine.describe()
    if "queries" in options.parts:
        stored = shape_queries.load()
        results["queries"] = {}
        for name in options.models:
            results["queries"][name] = measure_recordings(stored[name], options.rounds)
            results["queries"][name]["SymPy"] = measure_sympy(stored[name], 3)
        results["queries"]["20 guards"] = measure_recordings([many_guards()], options.rounds)
        show_queries(results["queries"])
    if "traces" in options.parts:
        results["traces"] = measure_traces(options.models, options.processes)
    if "package" in options.parts:
        results["package"] = measure_package(options.processes)
        print(results["package"])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
