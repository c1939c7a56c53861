"""Record the size queries that compiling real models makes, for shapes_figures.py to replay.

    python benchmarks/shape_queries.py [--models bert gpt2 ...]     record again, to benchmarks/shape_queries.json.gz

Each model is compiled by Treadle (tracer, autograd, codegen) for one size and then, with batch and sequence length as symbols, for
another. Every call of the second compilation that reaches the node of a size is recorded: arithmetic, questions about layouts,
decisions. An operand is `12` (a result; the symbols come first, then the queries in order) or `#8` (a constant); lists stand in
brackets.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import zoo  # noqa: E402

STORE = Path(__file__).with_name("shape_queries.json.gz")
MODELS = ("bert", "gpt2", "llama", "t5", "vit", "resnet18")
STATIC = {"batch": 4, "length": 8}
HINTS = {"batch": 7, "length": 11}

ARITHMETIC = ("add", "sub", "mul", "mod", "floordiv", "int_floordiv", "pow_by_natural", "sym_min", "sym_max", "neg",
              "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "sym_not", "sym_float", "float_truediv", "int_truediv",
              "float_pow", "sym_sum")  # fmt: skip
LAYOUT = ("is_contiguous", "is_channels_last_contiguous_2d", "is_channels_last_contiguous_3d",
          "is_channels_last_strides_2d", "is_channels_last_strides_3d", "is_non_overlapping_and_dense")  # fmt: skip
DECISIONS = ("guard_bool", "bool_", "guard_int", "guard_or_false", "guard_or_true", "guard_size_oblivious",
             "statically_known_true", "expect_true")  # fmt: skip
KIND = {
    **dict.fromkeys(ARITHMETIC, "arithmetic"),
    **dict.fromkeys(LAYOUT, "layout"),
    **dict.fromkeys(DECISIONS, "decision"),
}


class Operand(NamedTuple):
    """The result of an earlier query, or a constant."""

    position: int | None
    constant: Any = None


class Query(NamedTuple):
    """One call on a node. An operand that is a tuple stands for a list of nodes (sizes, strides, terms)."""

    method: str
    operands: tuple[Operand | tuple[Operand, ...], ...]


class Recording(NamedTuple):
    """The queries to one environment in order, behind the hints of its symbols (results 0, 1, ...)."""

    hints: list[int]
    queries: list[Query]


# -- the file ----------------------------------------------------------------------------------------------------------


def _write_operand(operand: Operand | tuple[Operand, ...]) -> str:
    if not isinstance(operand, Operand):
        return "[" + ",".join(map(_write_operand, operand)) + "]"
    return f"#{operand.constant!r}" if operand.position is None else str(operand.position)


def _read_operand(text: str) -> Operand | tuple[Operand, ...]:
    if text.startswith("["):
        return tuple(_read_operand(part) for part in text[1:-1].split(",") if part)  # type: ignore[return-value]
    return Operand(None, json.loads(text[1:].lower())) if text.startswith("#") else Operand(int(text))


def save(recordings: dict[str, list[Recording]]) -> None:
    content = {
        name: [
            {"hints": r.hints, "queries": [" ".join([q.method, *map(_write_operand, q.operands)]) for q in r.queries]}
            for r in parts
        ]
        for name, parts in recordings.items()
    }
    # Without a time stamp, an equal recording gives an equal file.
    STORE.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))


def load() -> dict[str, list[Recording]]:
    """Model -> its stored recordings, one per environment (per part that was traced on its own)."""
    content = json.loads(gzip.decompress(STORE.read_bytes()))
    return {
        name: [Recording(r["hints"], list(map(_read_query, r["queries"]))) for r in content[name]] for name in content
    }


def _read_query(line: str) -> Query:
    method, *operands = line.split(" ")
    return Query(method, tuple(map(_read_operand, operands)))


# -- recording ---------------------------------------------------------------------------------------------------------


class Recorder:
    """Records every call on the nodes of one environment. Results of calls are recognised by the identity of the node."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.symbols: list[Any] = []
        self.rows: list[tuple[str, tuple[Any, ...], Any]] = []
        self.kept: dict[int, Any] = {}

    def note(self, method: str, operands: tuple[Any, ...], result: Any) -> None:
        for operand in operands:
            for node in operand if isinstance(operand, (list, tuple)) else (operand,):
                self._need(node)
        self.rows.append((method, operands, result if hasattr(result, "adapter") else None))
        if hasattr(result, "adapter"):
            self.kept[id(result)] = result

    def _need(self, node: Any) -> None:
        """Make a node that no call has made (a size or stride of an input) by calls on its symbols."""
        if id(node) in self.kept or node.is_constant():
            return
        from treadle_shapes.expr import Product, Sum, Symbol

        value, make = node.value, node.adapter.node
        if isinstance(value, Symbol):
            self.symbols.append(node)
            self.kept[id(node)] = node
        elif isinstance(value, (Sum, Product)):
            self._fold(*_parts(value), node, make)
        else:
            raise TypeError(f"{value} reached a size without any call")

    def _fold(self, method: str, parts: list[Any], result: Any, make: Callable[[Any], Any]) -> None:
        total = make(parts[0])
        for part in parts[1:]:
            after = make(total.value * part if method == "mul" else total.value + part)
            self.note(method, (total, make(part)), after)
            total = after
        assert total is result, f"{total} is not {result}"

    def finish(self) -> Recording:
        position = {id(node): k for k, node in enumerate(self.symbols)}
        queries, made = [], len(self.symbols)

        def ref(operand: Any) -> Operand | tuple[Operand, ...]:
            if isinstance(operand, (list, tuple)):
                return tuple(ref(part) for part in operand)  # type: ignore[misc]
            return Operand(None, operand.value) if operand.is_constant() else Operand(position[id(operand)])

        for method, operands, result in self.rows:
            queries.append(Query(method, tuple(map(ref, operands))))
            if result is not None:
                position.setdefault(id(result), made)  # the same result again: the same text again
            made += 1
        return Recording([self.env.hints[s.value] for s in self.symbols], queries)


def _parts(value: Any) -> tuple[str, list[Any]]:
    """The method that makes a sum or product, and its operands."""
    if hasattr(value, "powers"):
        return "mul", [atom for atom, power in value.powers.items() for _ in range(power)]
    terms = value.coefficients.items()
    if len(terms) == 1 and value.const == 0:
        return "mul", list(*terms)
    return "add", [m * c for m, c in terms] + ([value.const] if value.const else [])


@contextlib.contextmanager
def recording() -> Iterator[dict[int, Recorder]]:
    """Recorders by environment, filled while the block runs."""
    from treadle_shapes.torch import LayoutNode, SymNode

    recorders: dict[int, Recorder] = {}
    inside = False

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(node: Any, *args: Any) -> Any:
            nonlocal inside
            if inside:
                return original(node, *args)
            inside = True
            try:
                result = original(node, *args)
            finally:
                inside = False
            operands = args if name in LAYOUT or name == "sym_sum" else (node, *args)
            operands = tuple(o for o in operands if isinstance(o, (SymNode, list, tuple)))
            flat = [n for o in operands for n in (o if isinstance(o, (list, tuple)) else (o,))]
            if not all(n.is_constant() for n in flat):
                recorders.setdefault(id(node.env), Recorder(node.env)).note(name, operands, result)
            return result

        return call

    originals = [
        (owner, name, vars(owner)[name]) for owner in (SymNode, LayoutNode) for name in KIND if name in vars(owner)
    ]
    for owner, name, original in originals:
        setattr(owner, name, wrap(name, original))
    try:
        yield recorders
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def record(name: str) -> list[Recording]:
    """Compile a model of the zoo for one size, then with symbolic batch and length for another, and record the second compile."""
    import treadle

    model = zoo.SCENARIOS[name].build()
    treadle.reset()
    compiled = treadle.compile(model)
    with torch.no_grad():
        compiled(**_inputs(name, **STATIC))
        with recording() as recorders:
            compiled(**_inputs(name, **HINTS))
    return [recorder.finish() for recorder in recorders.values()]


def _inputs(name: str, batch: int, length: int) -> dict[str, Any]:
    inputs = zoo.SCENARIOS[name].inputs(batch)
    return {key: t[:, :length].clone() if t.dim() == 2 else t for key, t in inputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recordings = load() if STORE.exists() else {}
    for name in options.models:
        recordings[name] = record(name)
        kinds = [KIND[q.method] for part in recordings[name] for q in part.queries]
        print(
            name,
            [part.hints for part in recordings[name]],
            {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            flush=True,
        )
    save({name: recordings[name] for name in MODELS if name in recordings})


if __name__ == "__main__":
    main()
