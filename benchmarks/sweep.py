"""Architectures of transformers and timm, built small, and programs of other libraries: right or wrong, graphs, breaks, seconds, speed.

    python benchmarks/sweep.py                               all of them, to benchmarks/results/sweep.json and sweep.md
    python benchmarks/sweep.py --every 12                    each twelfth
    python benchmarks/sweep.py --resume --most 25            the next 25 of which the output has no row yet
    python benchmarks/sweep.py --resume --again "not built"   those that could not be built, once more
    python benchmarks/sweep.py --library timm --names vit_tiny_patch16_224 resnet18
    python benchmarks/sweep.py --limit 120                   seconds for one architecture
    python benchmarks/sweep.py --training                    training steps, to benchmarks/results/sweep_training.json and .md

Each architecture runs in a process of its own with random weights, one OpenMP thread, `torch.no_grad()` and the default backend: once
eagerly, three times through `treadle.compile`. A model that cannot be built without more knowledge of it, or that eager itself does not
run, says so and counts as neither right nor wrong. A model whose own code computes something else while it is compiled is right if Treadle
gives that, and the table says so. Where results differ, those in float64 decide whose are the more exact.

A training step is a call in training mode, the mean squares of its floating-point results, and their backward pass. Results and
gradients of all parameters are compared. Every call starts from the same seeds, so that dropout draws the same masks.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import multiprocessing
import random
import sys
import time
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

RESULTS = ROOT / "benchmarks" / "results"

PROCESSES = multiprocessing.get_context("forkserver")
"""Processes start as copies of one that has imported the libraries, which takes longer than to measure many a model."""

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


def measure(library: str, name: str, training: bool) -> dict[str, Any]:
    """The row of one architecture."""
    import torch

    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    import treadle

    torch.manual_seed(0)
    torch.set_num_threads(1)
    row: dict[str, Any] = {"library": library, "name": name}
    run = _step if training else _run
    timed = _outputs_of_step if training else _run
    try:
        model, given = BUILDERS[library](name)
        if training:
            model.train()
            if library == "timm":
                # Batch norms want more than one image. PyTorch's derivative for one is wrong where the gradient is a transposed view.
                given = {"x": torch.randn(2, *given["x"].shape[1:])}
        expected = run(model, model, given)
    except Exception as error:
        return {**row, "outcome": "not built", "why": _without_paths(f"{type(error).__name__}: {error}")[:200]}
    compiled = treadle.compile(model)
    start = time.perf_counter()
    found = [run(model, compiled, given)]
    row["seconds"] = round(time.perf_counter() - start, 2)
    found += [run(model, compiled, given) for _ in range(2)]
    row["speedup"] = round(_ratio(lambda: timed(model, model, given), lambda: timed(model, compiled, given)), 2)
    stats = treadle.stats()
    is_right = all(_are_close(expected, other) for other in found)
    if not is_right:
        is_right = all(_as_exact_as(expected, other, run, model, given) for other in found)
    row["outcome"] = "right" if is_right else "wrong"
    if row["outcome"] == "wrong":
        with unittest.mock.patch("torch.compiler.is_compiling", return_value=True):
            if all(_are_close(run(model, model, given), other) for other in found):
                row.update(
                    outcome="right",
                    note="the library itself computes something else under torch.compiler.is_compiling()",
                )
    row["graphs"], row["recompiles"] = stats.graphs, len(stats.recompiles)
    row["breaks"] = [f"{b.code} at {_without_paths(b.where)}: {_without_paths(b.reason)[:160]}" for b in stats.breaks]
    row["eager"] = [_without_script(_without_paths(graph.reason))[:160] for graph in stats.eager_graphs]
    row["skipped"] = [_without_script(_without_paths(text))[:200] for text in stats.skipped]
    return row


def _run(model: Any, forward: Callable[..., Any], given: dict[str, Any]) -> list[Any]:
    """The tensors that a call returns."""
    import torch

    _seed()
    with torch.no_grad():
        return _tensors_of(forward(**given))


def _step(model: Any, forward: Callable[..., Any], given: dict[str, Any]) -> list[Any]:
    """The tensors that a call returns, and the gradients of the parameters for their mean squares, in units of the largest of them."""
    outputs = _outputs_of_step(model, forward, given)
    gradients = [parameter.grad for parameter in _parameters_of(model) if parameter.grad is not None]
    largest = max((float(gradient.abs().max()) for gradient in gradients if gradient.numel()), default=1.0) or 1.0
    return [*(output.detach() for output in outputs), *(gradient / largest for gradient in gradients)]


def _outputs_of_step(model: Any, forward: Callable[..., Any], given: dict[str, Any]) -> list[Any]:
    """The tensors that a call returns, after the backward pass of the sum of their mean squares."""
    for parameter in _parameters_of(model):
        parameter.grad = None
    _seed()
    outputs = _tensors_of(forward(**given))
    losses = [
        output.float().square().mean() for output in outputs if output.is_floating_point() and output.requires_grad
    ]
    sum(losses).backward()  # pyright: ignore[reportAttributeAccessIssue]
    return outputs


def _parameters_of(model: Any) -> list[Any]:
    return [parameter for parameter in getattr(model, "parameters", list)() if parameter.requires_grad]


def _seed() -> None:
    """Set the generators that models draw from: torch's, Python's (skipped layers) and NumPy's (masked frames)."""
    import numpy
    import torch

    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)


def _tensors_of(output: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(dict(output) if hasattr(output, "keys") else output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """The processor's seconds of one call to those of another, each the best of those that were made in turns."""
    best = [float("inf")] * 2
    for _ in range(7):
        for position, call in enumerate((one, other)):
            start = time.process_time()
            call()
            best[position] = min(best[position], time.process_time() - start)
    return best[0] / best[1]


def _are_close(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    import torch

    if len(expected) != len(found):
        return False
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(a, b, rtol=1e-3, atol=1e-4 * _scale(a), equal_nan=True)
        for a, b in zip(expected, found, strict=True)
    )


def _as_exact_as(
    expected: Sequence[Any], found: Sequence[Any], run: Callable[..., list[Any]], model: Any, given: dict[str, Any]
) -> bool:
    """Whether nine in ten results are at most four times as far from those in float64 as eager's, and no other by a tenth of its
    largest element.

    Batch norms of few elements amplify rounding errors, samples at the border of an image jump, and an element within rounding of 0 gets
    one gradient of a ReLU or the other.
    """
    double = copy.deepcopy(model).double()
    exact = run(double, double, {k: v.double() if _is_float(v) else v for k, v in given.items()})
    if not len(expected) == len(found) == len(exact):
        return False
    errors = [
        (_distance(mine, best), _distance(theirs, best), _largest(best))
        for mine, theirs, best in zip(found, expected, exact, strict=True)
    ]
    exceptions = [1 for mine, theirs, scale in errors if mine > 4 * theirs + 1e-6 * max(scale, 1.0)]
    return 10 * len(exceptions) <= len(errors) and all(
        mine <= max(4 * theirs, 1e-5, 0.1 * scale) for mine, theirs, scale in errors
    )


def _distance(found: Any, exact: Any) -> float:
    """The largest difference; infinite where the tensors differ in shape, or in what is no finite number."""
    if found.shape != exact.shape or not _is_float(exact):
        return 0.0 if found.equal(exact) else float("inf")
    finite = found.isfinite()
    if not finite.equal(exact.isfinite()) or not found[~finite].double().nan_to_num().equal(
        exact[~finite].nan_to_num()
    ):
        return float("inf")
    return float((found[finite] - exact[finite]).abs().max()) if finite.any() else 0.0


def _is_float(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _scale(tensor: Any) -> float:
    """The largest magnitude in a tensor, at least 1: rounding errors grow with it."""
    return max(1.0, _largest(tensor))


def _largest(tensor: Any) -> float:
    finite = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor.flatten()[:0]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _without_paths(text: str) -> str:
    """The text with files named from the folder on that Python imports them from: results are read elsewhere."""
    for folder in sorted({str(ROOT), *filter(None, sys.path)}, key=len, reverse=True):
        text = text.replace(f"{folder}/", "")
    return text


def _without_script(text: str) -> str:
    """The text without the script that reproduces an internal error on this machine."""
    return text.partition("; reproduce with")[0]


# ---- all of them


def row_of(library: str, name: str, limit: float, training: bool) -> dict[str, Any]:
    """The row of one architecture, from a process that may take `limit` seconds."""
    row = {"library": library, "name": name, "outcome": "no result"}
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_send_row, args=(sender, library, name, training), daemon=True)
    process.start()
    sender.close()
    try:
        if receiver.poll(limit):
            row = receiver.recv()
            process.join(10)
            return row
        row["why"] = f"more than {limit:.0f} s"
    except EOFError:
        process.join()
        row["why"] = f"the process ended with code {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return row


def import_libraries() -> None:
    import torchvision_schemas

    torchvision_schemas.define_missing_schemas()
    for module in ("timm", "transformers.models.auto.modeling_auto", "treadle"):
        importlib.import_module(module)


def _send_row(sender: Any, library: str, name: str, training: bool) -> None:
    try:
        row = measure(library, name, training)
    except Exception as error:
        why = _without_paths(f"{type(error).__name__}: {error}")[-300:]
        row = {"library": library, "name": name, "outcome": "no result", "why": why}
    sender.send(row)


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
    parser.add_argument("--training", action="store_true", help="training steps instead of calls without gradients")
    parser.add_argument("--output", type=Path, help="where the JSON goes; the table beside it")
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "NAME"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.one:
        library, name = options.one
        print(json.dumps(measure(library, name, options.training)))
        return 0
    import machine

    options.output = options.output or RESULTS / ("sweep_training.json" if options.training else "sweep.json")
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
        rows.append(row_of(library, name, options.limit, options.training) | {"commit": head["machine"]["commit"]})
        print(library, name, rows[-1]["outcome"], file=sys.stderr, flush=True)
        # After every row, so that an interrupted run leaves results.
        options.output.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        options.output.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    return int(any(row["outcome"] == "wrong" for row in rows))


if __name__ == "__mp_main__":  # the process that those of `PROCESSES` are copies of
    import_libraries()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
