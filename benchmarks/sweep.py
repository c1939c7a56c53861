"""Architectures of transformers and timm, built small, and programs of other libraries: right or wrong, graphs, breaks, seconds, speed.

    python benchmarks/sweep.py                               all of them, to benchmarks/results/sweep.json and sweep.md
    python benchmarks/sweep.py --every 12                    each twelfth
    python benchmarks/sweep.py --resume --most 25            the next 25 of which the output has no row yet
    python benchmarks/sweep.py --resume --again "not built"   those that could not be built, once more
    python benchmarks/sweep.py --library timm --names vit_tiny_patch16_224 resnet18
    python benchmarks/sweep.py --limit 120                   seconds for one architecture

Each architecture runs in a process of its own with random weights, one OpenMP thread, `torch.no_grad()` and the default backend: once
eagerly, three times through `treadle.compile`. A model that cannot be built without more knowledge of it, or that eager itself does not
run, says so and counts as neither right nor wrong. A model whose own code computes something else while it is compiled is right if Treadle
gives that, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "sweep.json"

LARGE = 60_000_000
"""Parameters of a model of timm's beyond which it is built with two layers."""


# ---- what there is


def names_of(library: str) -> list[str]:
    """All architectures of a library, or programs of others: of timm its families, each of which stands for its smallest model."""
    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    if library == "timm":
        import timm

        return list(timm.list_modules())
    if library == "libraries":
        import library_programs

        return list(library_programs.PROGRAMS)
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


# ---- one architecture, in a process of its own


def build_timm(name: str) -> tuple[Any, dict[str, Any]]:
    import timm
    import torch

    smallest = _smallest_of(name)
    try:  # two layers of a large transformer, whose eager call alone takes seconds
        model: Any = timm.create_model(smallest, depth=2) if _size_of(smallest) > LARGE else timm.create_model(smallest)
    except TypeError:
        model = timm.create_model(smallest)
    model.eval()
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, {"x": torch.randn(1, *size)}


def _smallest_of(name: str) -> str:
    """The model with the fewest parameters of a family of timm's; a model stands for itself."""
    import timm

    variants = timm.list_models(module=name) if name in timm.list_modules() else []
    variants = [
        model for model in variants if model.startswith("test_")
    ] or variants  # timm's own small models for tests
    variants = variants[:: 1 + len(variants) // 12]  # counting the parameters of all of a large family takes minutes
    return min(variants, key=_size_of) if variants else name


def _size_of(name: str) -> int:
    """The number of parameters of a model of timm's."""
    import timm
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in timm.create_model(name).parameters())


def build_program(name: str) -> tuple[Any, dict[str, Any]]:
    import library_programs

    return library_programs.PROGRAMS[name]()


def build_transformers(name: str) -> tuple[Any, dict[str, Any]]:
    import small_transformers

    return small_transformers.build(name)


BUILDERS = {"timm": build_timm, "transformers": build_transformers, "libraries": build_program}


def measure(library: str, name: str) -> dict[str, Any]:
    """The row of one architecture."""
    import torch

    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    import treadle

    torch.manual_seed(0)
    torch.set_num_threads(1)
    row: dict[str, Any] = {"library": library, "name": name}
    try:
        model, given = BUILDERS[library](name)
        with torch.no_grad():
            expected = _run(model, given)
    except Exception as error:
        return {**row, "outcome": "not built", "why": _without_paths(f"{type(error).__name__}: {error}")[:200]}
    compiled = treadle.compile(model)
    with torch.no_grad():
        start = time.perf_counter()
        found = [_run(compiled, given)]
        row["seconds"] = round(time.perf_counter() - start, 2)
        found += [_run(compiled, given) for _ in range(2)]
        row["speedup"] = round(_ratio(lambda: _run(model, given), lambda: _run(compiled, given)), 2)
    stats = treadle.stats()
    row["outcome"] = "right" if all(_are_close(expected, other) for other in found) else "wrong"
    if row["outcome"] == "wrong":
        with torch.no_grad(), unittest.mock.patch("torch.compiler.is_compiling", return_value=True):
            if all(_are_close(_run(model, given), other) for other in found):
                row.update(
                    outcome="right",
                    note="the library itself computes something else under torch.compiler.is_compiling()",
                )
    row["graphs"], row["recompiles"] = stats.graphs, len(stats.recompiles)
    row["breaks"] = [f"{b.code} at {_without_paths(b.where)}: {_without_paths(b.reason)[:160]}" for b in stats.breaks]
    row["eager"] = [_without_paths(graph.reason)[:160] for graph in stats.eager_graphs]
    row["skipped"] = [_without_paths(text)[:200] for text in stats.skipped]
    return row


def _run(model: Any, given: dict[str, Any]) -> Any:
    import torch

    torch.manual_seed(1)
    return model(**given)


def _ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The seconds of one call to those of another, each the best of those that were made in turns."""
    best = [float("inf")] * 2
    for _ in range(7):
        for position, call in enumerate((one, other)):
            start = time.perf_counter()
            call()
            best[position] = min(best[position], time.perf_counter() - start)
    return best[0] / best[1]


def _are_close(expected: Any, found: Any) -> bool:
    import torch
    from torch.utils import _pytree as pytree

    one, other = (list(filter(_is_tensor, pytree.tree_leaves(_plain(part)))) for part in (expected, found))
    if len(one) != len(other):
        return False
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * _scale(a), equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _scale(tensor: Any) -> float:
    """The largest magnitude in a tensor, at least 1: rounding errors grow with it."""
    finite = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor[:0]
    return max(1.0, float(finite.abs().max())) if finite.numel() else 1.0


def _is_tensor(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor)


def _plain(output: Any) -> Any:
    return dict(output) if hasattr(output, "keys") else output


def _without_paths(text: str) -> str:
    """The text with files named from the folder on that Python imports them from: results are read elsewhere."""
    for folder in sorted({str(ROOT), *filter(None, sys.path)}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text


# ---- all of them


def row_of(library: str, name: str, limit: float) -> dict[str, Any]:
    """The row of one architecture, from a process that may take `limit` seconds."""
    command = [sys.executable, __file__, "--one", library, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"library": library, "name": name, "outcome": "no result", "why": f"more than {limit:.0f} s"}
    if done.returncode:
        return {
            "library": library,
            "name": name,
            "outcome": "no result",
            "why": _without_paths(done.stderr.strip())[-300:],
        }
    return json.loads(done.stdout.splitlines()[-1])


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a Markdown table, with a line of totals."""
    lines = ["| library | architecture | outcome | graphs | breaks | seconds | × eager | reason |", "|---" * 8 + "|"]
    for row in rows:
        reasons = [
            *row.get("breaks", ()),
            *row.get("eager", ()),
            *row.get("skipped", ()),
            row.get("note"),
            row.get("why"),
        ]
        reason = next((text for text in reasons if text), "").replace("|", "/").replace("\n", " ")
        numbers = [row.get("graphs", ""), len(row["breaks"]) if "breaks" in row else "", row.get("seconds", "")]
        cells = [row["library"], row["name"], row["outcome"], *numbers, row.get("speedup", ""), reason[:160]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("right", "wrong", "no result")}
    whole = sum(row.get("graphs") == 1 and not row["breaks"] for row in rows if row["outcome"] == "right")
    lines += [
        "",
        f"{counts['right']} right, {whole} of them one graph; {counts['wrong']} wrong; {counts['no result']} no result.",
    ]
    return "\n".join(lines) + "\n"


def _rows_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=sorted(BUILDERS), nargs="+", default=sorted(BUILDERS))
    parser.add_argument("--names", nargs="+", metavar="NAME", help="only these architectures")
    parser.add_argument("--every", type=int, default=1, help="only each n-th architecture")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the output has, each with its commit")
    parser.add_argument("--again", nargs="+", metavar="OUTCOME", help="with --resume: not the rows with these outcomes")
    parser.add_argument("--most", type=int, help="new rows, at most")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one architecture")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes; the table beside it")
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "NAME"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.one:
        print(json.dumps(measure(*options.one)))
        return 0
    import machine

    rows: list[dict[str, Any]] = _rows_of(options.output) if options.resume else []
    rows = [row for row in rows if row["outcome"] not in (options.again or ())]
    known = {(row["library"], row["name"]) for row in rows}
    wanted = [
        (library, name)
        for library in options.library
        for name in options.names or names_of(library)[:: options.every]
        if (library, name) not in known
    ]
    head = {"command": " ".join(["python benchmarks/sweep.py", *arguments]), "machine": machine.describe()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for library, name in wanted[: options.most]:
        rows.append(row_of(library, name, options.limit) | {"commit": head["machine"]["commit"]})
        print(library, name, rows[-1]["outcome"], file=sys.stderr, flush=True)
        # After every row, so that an interrupted run leaves results.
        options.output.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        options.output.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    return int(any(row["outcome"] == "wrong" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
