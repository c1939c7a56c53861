"""treadle_shapes next to PyTorch's ShapeEnv and plain SymPy, on the size queries that tracing real models makes.

    python benchmarks/shapes_figures.py [--models bert gpt2 ...] [--output FILE]   to benchmarks/results/shapes.json

Each model is run once on fake tensors with a dynamic batch (and sequence), and every call that reaches a size's node is
recorded. The recording is then replayed on nodes of each engine in turn, several rounds, each round on a fresh environment:
microseconds per arithmetic operation and per decision, medians over rounds. All in one process, one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import symbolic_shapes as theirs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import machine  # noqa: E402
import zoo  # noqa: E402
from treadle_shapes import ShapeEnv  # noqa: E402
from treadle_shapes import node as node_module  # noqa: E402
from treadle_shapes.node import SymNode  # noqa: E402
from treadle_shapes.torch import fake_shape_env, fake_tensor, sym_int, symbolic_dispatch  # noqa: E402

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "shapes.json"
MODELS = ("bert", "gpt2", "vit", "resnet18")
ROUNDS = 7

ARITHMETIC = sorted({*node_module.INT_BINARY} - {"truediv", "int_truediv", "pow"})
DECISIONS = ("guard_bool", "bool_", "guard_or_false", "guard_or_true", "statically_known_true", "expect_true")
HINTS = (7, 11)


class Query(NamedTuple):
    """One call on a node: operands and result by position in the list of nodes; ints stand for themselves."""

    method: str
    operands: tuple[Any, ...]


class Constant(NamedTuple):
    value: int


class Recorder:
    """Notes every arithmetic operation and decision that reaches a SymNode while a model runs on fake tensors."""

    def __init__(self) -> None:
        self.queries: list[Query] = []
        self.position: dict[int, int] = {}
        self.kept: list[SymNode] = []

    def ref(self, node: SymNode) -> Any:
        return Constant(node.value) if node.is_constant() else self.position.get(id(node))

    def add(self, node: SymNode) -> None:
        self.position.setdefault(id(node), len(self.kept))
        self.kept.append(node)

    def wrap(self, name: str, original: Callable) -> Callable:
        def call(node: SymNode, *args: Any) -> Any:
            result = original(node, *args)
            operands = tuple(self.ref(n) for n in (node, *args) if isinstance(n, SymNode))
            if None not in operands and any(isinstance(operand, int) for operand in operands):
                self.queries.append(Query(name, operands))
                if isinstance(result, SymNode):
                    self.add(result)
            return result

        return call


@contextlib.contextmanager
def recording(recorder: Recorder):
    originals = {name: getattr(SymNode, name) for name in (*ARITHMETIC, *DECISIONS)}
    for name, original in originals.items():
        setattr(SymNode, name, recorder.wrap(name, original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(SymNode, name, original)


# -- running a model on fake tensors -----------------------------------------------------------------------------------


def dynamic_dims(inputs: dict[str, torch.Tensor]) -> dict[str, list[str | None]]:
    """Batch and, for token ids and masks, sequence."""
    return {
        name: ["batch", "sequence", *[None] * (t.dim() - 2)] if t.dim() == 2 else ["batch", *[None] * (t.dim() - 1)]
        for name, t in inputs.items()
    }


def tensor_inputs(scenario: Any) -> dict[str, torch.Tensor]:
    return {name: t for name, t in scenario.inputs(batch=HINTS[0]).items() if isinstance(t, torch.Tensor)}


def fake_model(scenario: Any, mode: FakeTensorMode) -> torch.nn.Module:
    """The model with its parameters and buffers as fake tensors of `mode`."""
    model = scenario.build()
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, value in table.items():
                if value is not None:
                    with mode:
                        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
                    table[name] = torch.nn.Parameter(fake, False) if table is module._parameters else fake
    return model


def run_ours(scenario: Any, static: bool, recorder: Recorder | None = None) -> tuple[float, ShapeEnv]:
    """(seconds for one fake run, the environment)"""
    env = ShapeEnv()
    shape_env: Any = fake_shape_env(env)  # stands for PyTorch's ShapeEnv, which FakeTensorMode's annotation names
    mode = FakeTensorMode(shape_env=shape_env)
    real = tensor_inputs(scenario)
    symbols: dict[str, Any] = {}
    inputs = {}
    for name, dims in dynamic_dims(real).items():
        sizes = []
        for dim, size in zip(dims, real[name].shape, strict=True):
            if dim is not None and not static:
                symbols.setdefault(dim, env.create_symbol(size, dim))
            sizes.append(None if dim is None or static else symbols[dim])
        inputs[name] = fake_tensor(mode, real[name], sizes)
    model = fake_model(scenario, mode)
    with mode, symbolic_dispatch(), torch.no_grad():
        if recorder is None:
            FakeTensorMode.cache_clear()  # as in a fresh process: the cache for constant sizes is global
            start = time.perf_counter()
            model(**inputs)
            return time.perf_counter() - start, env
        for s in symbols.values():
            recorder.add(sym_int(env, s).node)
        with recording(recorder):
            model(**inputs)
    return 0.0, env


def run_theirs(scenario: Any, static: bool) -> float:
    env = theirs.ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    real = tensor_inputs(scenario)
    inputs = {}
    for name, dims in dynamic_dims(real).items():
        kinds = [theirs.DimDynamic.STATIC if d is None or static else theirs.DimDynamic.DYNAMIC for d in dims]
        context = theirs.StatelessSymbolicContext(kinds)
        inputs[name] = mode.from_tensor(real[name], source=ConstantSource(name), symbolic_context=context)
    model = fake_model(scenario, mode)
    with mode, symbolic_dispatch(), torch.no_grad():
        FakeTensorMode.cache_clear()
        start = time.perf_counter()
        model(**inputs)
        return time.perf_counter() - start


# -- replaying ---------------------------------------------------------------------------------------------------------


def our_nodes(count: int) -> tuple[list[Any], Any]:
    env = ShapeEnv()
    symbols = [sym_int(env, env.create_symbol(hint, f"dim {k}")).node for k, hint in enumerate(HINTS[:count])]
    return symbols, env


def their_nodes(count: int) -> tuple[list[Any], Any]:
    env = theirs.ShapeEnv()
    nodes = []
    for k, hint in enumerate(HINTS[:count]):
        source = ConstantSource(f"dim{k}")
        sym = env.create_symbol(hint, source, dynamic_dim=theirs.DimDynamic.DYNAMIC)
        nodes.append(env.create_symintnode(sym, hint=hint, source=source).node)
    return nodes, env


def replay_nodes(make: Callable[[int], tuple[list[Any], Any]], queries: list[Query], count: int) -> dict[str, Any]:
    """Seconds spent in arithmetic and in decisions."""
    nodes, env = make(count)
    spent = {"arithmetic": 0.0, "decisions": 0.0}
    clock = time.perf_counter
    for query in queries:
        first = next(nodes[o] for o in query.operands if isinstance(o, int))
        operands = [nodes[o] if isinstance(o, int) else first.wrap_int(o.value) for o in query.operands]
        decision = query.method in DECISIONS
        method = getattr(operands[0], "guard_bool" if query.method == "bool_" else query.method)
        start = clock()
        result = method("", 0) if decision else method(operands[1])
        spent["decisions" if decision else "arithmetic"] += clock() - start
        if not decision:
            nodes.append(result)
    return {**spent, "env": env, "symbols": nodes[:count]}


_SYMPY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "mod": sympy.Mod, "floordiv": lambda a, b: sympy.floor(a / b), "int_floordiv": lambda a, b: sympy.floor(a / b),
    "pow_by_natural": lambda a, b: a**b, "sym_min": sympy.Min, "sym_max": sympy.Max,
    "eq": sympy.Eq, "ne": sympy.Ne, "lt": sympy.Lt, "le": sympy.Le, "gt": sympy.Gt, "ge": sympy.Ge,
    "and_": sympy.And, "or_": sympy.Or,
}  # fmt: skip


def replay_sympy(queries: list[Query], count: int) -> dict[str, Any]:
    """The same on bare SymPy with integer symbols: a decision substitutes the hints."""
    nodes: list[Any] = [sympy.Symbol(f"s{k}", integer=True, positive=True) for k in range(count)]
    hints = dict(zip(nodes, HINTS, strict=False))
    sympy.core.cache.clear_cache()
    spent = {"arithmetic": 0.0, "decisions": 0.0}
    clock = time.perf_counter
    for query in queries:
        operands = [nodes[o] if isinstance(o, int) else sympy.Integer(o.value) for o in query.operands]
        start = clock()
        if query.method in DECISIONS:
            bool(sympy.sympify(operands[0]).subs(hints))
            spent["decisions"] += clock() - start
        else:
            nodes.append(_SYMPY[query.method](*operands))
            spent["arithmetic"] += clock() - start
    return spent


def median_of(rounds: list[dict[str, Any]], queries: list[Query]) -> dict[str, float]:
    """Microseconds per operation and per decision."""
    decisions = sum(q.method in DECISIONS for q in queries)
    counts = {"arithmetic": len(queries) - decisions, "decisions": decisions}
    return {
        kind: round(statistics.median(r[kind] for r in rounds) / max(1, count) * 1e6, 3)
        for kind, count in counts.items()
    }


# -- guards ------------------------------------------------------------------------------------------------------------


def guard_costs(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds per recorded guard and per produced guard function, 20 guards on two symbols each time."""

    def ours() -> tuple[float, float]:
        (a, b), env = our_nodes(2)
        start = time.perf_counter()
        for k in range(20):
            a.mul(a.wrap_int(k + 2)).add(b).ne(a.wrap_int(1000 + k)).guard_bool()
        middle = time.perf_counter()
        env.compile_guards()
        return (middle - start) / 20, time.perf_counter() - middle

    def of_torch() -> tuple[float, float]:
        (a, b), env = their_nodes(2)
        start = time.perf_counter()
        for k in range(20):
            a.mul(a.wrap_int(k + 2)).add(b).ne(a.wrap_int(1000 + k)).guard_bool("", 0)
        middle = time.perf_counter()
        text = env.produce_guards_expression([torch.SymInt(a), torch.SymInt(b)])
        compile(text or "True", "guards", "eval")
        return (middle - start) / 20, time.perf_counter() - middle

    result = {}
    for name, run in (("treadle_shapes", ours), ("torch ShapeEnv", of_torch)):
        figures = [run() for _ in range(rounds)]
        result[name] = {
            "per guard": round(statistics.median(f[0] for f in figures) * 1e6, 1),
            "per guard function of 20": round(statistics.median(f[1] for f in figures) * 1e6, 1),
        }
    return result


# -- recompilations ----------------------------------------------------------------------------------------------------

#: sizes of (batch, sequence) of successive calls
SEQUENCES = {
    "batch 4 5 6 1": [(4, 8), (5, 8), (6, 8), (1, 8)],
    "batch 1 2 3 4": [(1, 8), (2, 8), (3, 8), (4, 8)],
    "sequence 8 17 64 1": [(4, 8), (4, 17), (4, 64), (4, 1)],
    "both 2x8 3x17 7x64 16x100": [(2, 8), (3, 17), (7, 64), (16, 100)],
    "batch equals sequence, then not": [(4, 4), (8, 8), (8, 9), (3, 5)],
    "with an empty batch": [(4, 8), (5, 8), (0, 8), (6, 8)],
}


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Attention over (batch, sequence, 16) with views, matmuls, softmax and a residual."""
    b, s, _ = x.shape
    q = (x @ weight).view(b, s, 2, 8).transpose(1, 2)
    scores = torch.softmax(q @ q.transpose(-1, -2) / 8**0.5, -1)
    return torch.nn.functional.layer_norm(x + (scores @ q).transpose(1, 2).reshape(b, s, 16), (16,))


def recompilations() -> dict[str, dict[str, int]]:
    """Number of graphs handed to the backend for each sequence of calls; results are checked against eager."""
    import treadle

    weight = torch.rand(16, 16)
    table: dict[str, dict[str, int]] = {}
    for name, sequence in SEQUENCES.items():
        table[name] = {}
        for engine, compile_with in (("treadle", treadle.compile), ("torch.compile", torch.compile)):
            count = 0

            def backend(gm: torch.fx.GraphModule, _inputs: Any) -> Callable:
                nonlocal count
                count += 1
                return gm.forward

            # torch.compile remembers by source line which sizes have changed.
            torch._dynamo.reset()
            function = types.FunctionType(block.__code__.replace(), block.__globals__, "block")
            compiled = compile_with(function, backend=backend)
            for batch, length in sequence:
                x = torch.rand(batch, length, 16)
                torch.testing.assert_close(compiled(x, weight), block(x, weight))
            table[name][engine] = count
    return table


def measure(name: str, rounds: int) -> dict[str, Any]:
    scenario = zoo.SCENARIOS[name]
    recorder = Recorder()
    run_ours(scenario, static=False)
    _, env = run_ours(scenario, static=False, recorder=recorder)
    count = len(env.symbols)
    queries = recorder.queries
    ours = [replay_nodes(our_nodes, queries, count) for _ in range(rounds)]
    torchs = [replay_nodes(their_nodes, queries, count) for _ in range(rounds)]
    plain = [replay_sympy(queries, count) for _ in range(min(rounds, 3))]
    seconds: dict[str, list[float]] = {"dynamic": [], "static": [], "torch dynamic": [], "torch static": []}
    for _ in range(max(3, rounds // 2)):
        seconds["dynamic"].append(run_ours(scenario, static=False)[0])
        seconds["static"].append(run_ours(scenario, static=True)[0])
        seconds["torch dynamic"].append(run_theirs(scenario, static=False))
        seconds["torch static"].append(run_theirs(scenario, static=True))
    return {
        "queries": len(queries),
        "guards": [str(g.expr) for g in env.minimal_guards()[0]],
        "microseconds": {
            "treadle_shapes": median_of(ours, queries),
            "torch ShapeEnv": median_of(torchs, queries),
            "SymPy": median_of(plain, queries),
        },
        "fake run seconds": {kind: round(statistics.median(values), 4) for kind, values in seconds.items()},
    }


def show(results: dict[str, Any]) -> None:
    head = f"{'model':10} {'queries':>7}  {'us per operation: ours / torch / SymPy':42} {'us per decision':32}"
    print(f"{head} seconds of a fake run: ours dynamic/static, torch dynamic/static")
    for name, r in results["models"].items():
        us = r["microseconds"]
        per_op = " / ".join(f"{us[e]['arithmetic']:.2f}" for e in ("treadle_shapes", "torch ShapeEnv", "SymPy"))
        per_decision = " / ".join(f"{us[e]['decisions']:.2f}" for e in ("treadle_shapes", "torch ShapeEnv", "SymPy"))
        run = r["fake run seconds"]
        times = f"{run['dynamic']}/{run['static']}, {run['torch dynamic']}/{run['torch static']}"
        print(f"{name:10} {r['queries']:7}  {per_op:42} {per_decision:32} {times}   guards: {r['guards']}")
    for engine, figures in results["guards"].items():
        print(engine, figures)
    for sequence, counts in results["recompilations"].items():
        print(f"compilations for {sequence}: {counts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = {
        "machine": machine.describe(),
        "models": {name: measure(name, options.rounds) for name in options.models},
        "guards": guard_costs(options.rounds),
        "recompilations": recompilations(),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    show(results)


if __name__ == "__main__":
    main()
