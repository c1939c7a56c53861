"""Which constructs of Python and PyTorch are captured in one graph: Treadle beside PyTorch's own tools.

    python benchmarks/constructs.py                                   to benchmarks/results/constructs.json and constructs.md
    python benchmarks/constructs.py --tools treadle --keep            Treadle again; the rows of the other tools stay as they are
    python benchmarks/constructs.py --modules numpy_values --names tensor_to_numpy --output /tmp/some.json

A construct is a function of `benchmarks/construct_programs` that takes a tensor. Each tool runs all of them in a process of its own, with a
backend that runs the graph as it is where the tool takes one. A program is called twice, with other values of the same shape, and compared
with eager: results, printed text, the argument afterwards, the state of the random number generators. It is

    right       captured without a graph break, and both calls do what eager does
    wrong       captured, but a call does something else
    not captured    the tool says that it cannot, or captures no graph
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import io
import itertools
import json
import pkgutil
import random
import re
import signal
import subprocess
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "benchmarks"))

DEFAULT_OUTPUT = ROOT / "benchmarks" / "results" / "constructs.json"
SECONDS = 60  # for one program


class NotCaptured(Exception):
    """The tool has captured no graph, or more than one."""


# ---- programs


def programs_of(module_name: str) -> list[str]:
    """The names of the programs of a module: its public functions of one argument x."""
    module = importlib.import_module(f"construct_programs.{module_name}")
    return [
        name
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
        and list(inspect.signature(function).parameters) == ["x"]
    ]


def fresh(module_name: str, name: str) -> Callable[..., Any]:
    """The program, in a module that nothing has changed yet."""
    import torch

    found = importlib.util.find_spec(f"construct_programs.{module_name}")
    assert found is not None and found.loader is not None
    torch.manual_seed(0)
    random.seed(0)
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return getattr(module, name)


def inputs() -> list[Any]:
    import torch

    first = torch.arange(6.0).reshape(2, 3)
    return [first, first + 0.5]


# ---- tools: each makes of a program and an example a callable, which a call may still compile


def with_treadle(function: Any, example: Any) -> Callable[..., Any]:
    import treadle

    treadle.reset()
    return _counted(lambda backend: treadle.compile(function, fullgraph=True, backend=backend))


def with_torch_compile(function: Any, example: Any) -> Callable[..., Any]:
    import torch

    torch._dynamo.reset()
    return _counted(lambda backend: torch.compile(function, fullgraph=True, backend=backend))


def _counted(compiled_with: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    graphs = []

    def backend(graph_module: Any, example_inputs: Any) -> Any:
        graphs.append(graph_module)
        return graph_module.forward

    compiled = compiled_with(backend)

    calls = itertools.count(1)

    def call(x: Any) -> Any:
        result = compiled(x)
        if not graphs and next(calls) > 1:  # the first call may set up what later ones rely on, in Python
            raise NotCaptured("no graph")
        return result

    return call


def with_export(function: Any, example: Any) -> Callable[..., Any]:
    import torch

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    return torch.export.export(Module(), (example,)).module()


def with_jit_trace(function: Any, example: Any) -> Callable[..., Any]:
    import torch

    traced: Any = torch.jit.trace(function, (example,), check_trace=False)
    return traced


def with_symbolic_trace(function: Any, example: Any) -> Callable[..., Any]:
    import torch

    return torch.fx.symbolic_trace(function)


TOOLS: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "treadle": with_treadle,
    "torch.compile": with_torch_compile,
    "torch.export": with_export,
    "torch.jit.trace": with_jit_trace,
    "torch.fx": with_symbolic_trace,
}


# ---- comparison


def described(value: Any) -> Any:
    """A value as something that compares equal where a program would not see a difference."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        metadata = (type(value).__name__, str(value.dtype), tuple(value.shape), value.layout, value.requires_grad)
        dense = (value.detach().to_dense() if value.layout != torch.strided else value.detach()).resolve_conj()
        return (*metadata, [round(number, 4) for number in torch.view_as_real(dense.cfloat()).flatten().tolist()])
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value).__name__, str(value.dtype), value.shape, np.round(value.astype(complex), 4).tolist())
    if isinstance(value, dict):
        extra = getattr(value, "default_factory", None)
        return (type(value).__name__, extra, [(described(key), described(item)) for key, item in value.items()])
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted(map(repr, value)))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [described(item) for item in value])
    if hasattr(value, "__next__") or type(value).__name__ in ("deque", "dict_values", "dict_keys"):
        return (type(value).__name__, getattr(value, "maxlen", None), [described(item) for item in value])
    if hasattr(value, "__dict__") and not isinstance(value, (type, types.FunctionType)):
        return (type(value).__qualname__, described(vars(value)))
    return repr(value)


def outcome_of_calls(function: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
    """What the calls give, print, leave in their argument and in the random number generators."""
    import torch

    seen = []
    for x in given:
        torch.manual_seed(1)
        random.seed(1)
        with contextlib.redirect_stdout(io.StringIO()) as stream, warnings.catch_warnings(record=True):
            result = described(function(x))
        state = torch.get_rng_state().sum().item(), hash(random.getstate())
        seen.append((result, stream.getvalue(), described(x), state))
    return seen


def try_program(tool: str, module_name: str, name: str) -> dict[str, Any]:
    """The row of one program."""
    row = {"tool": tool, "module": module_name, "name": name}
    try:
        expected = outcome_of_calls(fresh(module_name, name), inputs())
    except Exception as error:
        return {**row, "outcome": "eager fails", "why": _text(error)}
    signal.alarm(SECONDS)
    try:
        captured = TOOLS[tool](fresh(module_name, name), inputs()[0])
        found = outcome_of_calls(captured, inputs())
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return {**row, "outcome": "not captured", "why": _text(error)}
    finally:
        signal.alarm(0)
    if found == expected:
        return {**row, "outcome": "right"}
    return {**row, "outcome": "wrong", "why": _difference(expected, found)}


def _text(error: BaseException) -> str:
    return without_paths(f"{type(error).__name__}: {' '.join(str(error).split())}")[:240]


def without_paths(text: str) -> str:
    """The text with files named from the repository, from their package or from the standard library on: results are read elsewhere."""
    library = sysconfig.get_path("stdlib")
    places = [
        rf"{re.escape(str(ROOT))}/",
        r"[^\s\"'(]*/site-packages/",
        rf"{re.escape(library)}/",
        rf"{re.escape(sys.prefix)}/",
    ]
    return re.sub("|".join(places), "", text)


def _difference(expected: list[Any], found: list[Any]) -> str:
    for call, (one, other) in enumerate(zip(expected, found, strict=True), start=1):
        for what, a, b in zip(("result", "text", "argument", "random state"), one, other, strict=True):
            if a != b:
                return without_paths(f"call {call}, {what}: expected {a!r}, found {b!r}")[:240]
    return ""


def _time_is_up(*ignored: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def try_all(tool: str, programs: Sequence[tuple[str, str]]) -> None:
    """Print the rows, a line of JSON each: in a process of its own."""
    signal.signal(signal.SIGALRM, _time_is_up)
    for module_name, name in programs:
        print(json.dumps(try_program(tool, module_name, name)), file=sys.__stdout__, flush=True)


# ---- all of them


def rows_of(tool: str, programs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The rows of a tool. A program that ends the process has a row that says so, and the others run in a new one."""
    rows: list[dict[str, Any]] = []
    while len(rows) < len(programs):
        left = programs[len(rows) :]
        command = [sys.executable, __file__, "--one", tool, json.dumps(left)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"tool"')]
        if len(rows) < len(programs):
            module_name, name = programs[len(rows)]
            row = {"tool": tool, "module": module_name, "name": name, "outcome": "not captured"}
            rows.append({**row, "why": f"the process ended with {done.returncode}"})
    return rows


MARKS = {"right": "yes", "wrong": "**wrong**", "not captured": "–", "eager fails": "eager fails"}


def table(rows: Sequence[dict[str, Any]], tools: Sequence[str]) -> str:
    """Construct × tool as a Markdown table, totals first."""
    by_program: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_program.setdefault((row["module"], row["name"]), {})[row["tool"]] = row
    lines = ["| |" + "".join(f" {tool} |" for tool in tools), "|---" * (len(tools) + 1) + "|"]
    for outcome in ("right", "wrong", "not captured"):
        counts = [sum(row["tool"] == tool and row["outcome"] == outcome for row in rows) for tool in tools]
        lines.append(f"| {outcome} |" + "".join(f" {count} |" for count in counts))
    lines += ["", "| construct |" + "".join(f" {tool} |" for tool in tools) + " Treadle's reason |"]
    lines.append("|---" * (len(tools) + 2) + "|")
    for (module_name, name), found in by_program.items():
        marks = "".join(f" {MARKS[found[tool]['outcome']]} |" for tool in tools)
        why = found.get("treadle", {}).get("why", "").replace("|", "/")[:140]
        lines.append(f"| {module_name}: {name.replace('_', ' ')} |{marks} {why} |")
    return "\n".join(lines) + "\n"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modules = [module.name for module in pkgutil.iter_modules([str(ROOT / "benchmarks" / "construct_programs")])]
    parser.add_argument("--tools", choices=TOOLS, nargs="+", default=list(TOOLS))
    parser.add_argument("--modules", choices=modules, nargs="+", default=modules)
    parser.add_argument("--names", nargs="+", metavar="NAME", help="only these programs")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="where the JSON goes; the table beside it")
    parser.add_argument("--keep", action="store_true", help="keep the rows of the other tools that stand in the output")
    parser.add_argument("--one", nargs=2, metavar=("TOOL", "PROGRAMS"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.one:
        try_all(options.one[0], [tuple(pair) for pair in json.loads(options.one[1])])
        return 0
    import machine

    programs = [
        (module_name, name)
        for module_name in options.modules
        for name in programs_of(module_name)
        if options.names is None or name in options.names
    ]
    rows = [row for tool in options.tools for row in rows_of(tool, programs)]
    if options.keep:
        before = json.loads(options.output.read_text(encoding="utf-8"))["rows"]
        rows += [row for row in before if row["tool"] not in options.tools]
        options.tools = [tool for tool in TOOLS if any(row["tool"] == tool for row in rows)]
    head = {"command": " ".join(["python benchmarks/constructs.py", *arguments]), "machine": machine.describe()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    text = table(rows, options.tools)
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text.partition("\n\n")[0])
    return int(any(row["tool"] == "treadle" and row["outcome"] == "wrong" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
