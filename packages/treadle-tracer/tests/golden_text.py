"""A compile as text: bytecode, guards, graph, replacement bytecode. No addresses, no ids, no paths of this machine."""

from __future__ import annotations

import difflib
import re
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import treadle_frame
from treadle_tracer import TracerOptions, compile_handler
from treadle_tracer.bytecode import CodeModel, read
from treadle_tracer.output.continuations import forget_continuations

GOLDEN = Path(__file__).parent / "golden"
VERSION = f"py{sys.version_info.major}{sys.version_info.minor}"


def compile_text(subject: Any) -> str:
    """What the calls of a subject compile, in order."""
    treadle_frame.reset()
    forget_continuations()
    handler = compile_handler(
        lambda gm, inputs: gm.forward, TracerOptions(raise_internal_errors=True, **subject.options)
    )
    compiles: list[tuple[types.CodeType, Any]] = []

    def recording(frame: Any) -> Any:
        answer = handler(frame)
        if frame.code.co_filename == subject.function.__code__.co_filename:
            compiles.append((frame.code, answer))
        return answer

    function = subject.function
    handler.add_root(function.__code__)
    compiled = treadle_frame.dispatcher(function, recording)
    for call in subject.calls:
        args, kwargs = call()
        compiled(*args, **kwargs)
    return _clean("\n".join(map(_answer_text, compiles)))


def _answer_text(compiled: tuple[types.CodeType, Any]) -> str:
    code, answer = compiled
    title = f"==== {code.co_name}({', '.join(read(code).arguments)})"
    if not isinstance(answer, treadle_frame.Entry):
        return f"{title}\n\nno entry: {answer!r}\n"
    gm = answer.payload.graph_module
    parts = {
        "bytecode": model_text(read(code)),
        "guards": "\n".join(f"{_path_text(c.path)} {c.op}: {c.reason}" for c in answer.guard.checks),
        "graph": "none" if gm is None else graph_text(gm),
        "replacement": "the original" if answer.code == code else model_text(read(answer.code)),
        "fast path": "no" if answer.fast_path is None else f"yes, of {answer.fast_path[1]}",
    }
    return f"{title}\n\n" + "".join(f"---- {name}\n{text}\n\n" for name, text in parts.items())


def _path_text(path: Any) -> str:
    return ".".join(f"{step[0]}({', '.join(_object_text(x) for x in step[1:])})" for step in path)


def model_text(model: CodeModel) -> str:
    """One line per instruction, jump targets as instruction numbers, then the exception table."""
    lines = []
    for index, instruction in enumerate(model.instructions):
        value = "" if instruction.arg is None else _object_text(instruction.argval)
        lines.append(f"{index:4} {instruction.opname:28} {value}".rstrip())
    for entry in model.exceptions:
        lasti = " with lasti" if entry.lasti else ""
        lines.append(f"     {entry.start} to {entry.end} -> {entry.target}, depth {entry.depth}{lasti}")
    return "\n".join(lines)


def graph_text(gm: fx.GraphModule) -> str:
    """One line per node, with dtype and sizes of its result."""
    lines = []
    for node in gm.graph.nodes:
        target = node.target if isinstance(node.target, str) else _object_text(node.target)
        named = [f"{name}={_argument_text(value)}" for name, value in node.kwargs.items()]
        args = ", ".join([*map(_argument_text, node.args), *named])
        lines.append(f"{node.name} = {node.op} {target}({args}){_result_text(node.meta.get('example_value'))}")
    return "\n".join(lines)


def _argument_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_argument_text, value))}]"
    if isinstance(value, slice):
        return ":".join("" if x is None else _argument_text(x) for x in (value.start, value.stop, value.step))
    return repr(value) if isinstance(value, str) else str(value)


def _result_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f" -> {str(value.dtype).removeprefix('torch.')}{[str(size) for size in value.shape]}".replace("'", "")
    if isinstance(value, (tuple, list)) and value:
        return " ->" + ",".join(_result_text(item).removeprefix(" ->") for item in value)
    return "" if value is None else f" -> {value}"


def _object_text(value: Any) -> str:
    if isinstance(value, weakref.ref):
        return _object_text(value())
    if isinstance(value, (str, int, float, bytes, type(None), type(...))):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_object_text, value))})"
    if isinstance(value, types.CodeType):
        return f"<code {value.co_name}>"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None)
    if isinstance(name, str):
        if not isinstance(module, str):
            return f"<{name}>"
        package = module.partition(".")[0]  # where treadle keeps a helper is no part of the compile
        return f"<{package if package.startswith('treadle') else module}.{name}>"
    return f"<a {type(value).__name__}>"


def _clean(text: str) -> str:
    here = re.escape(str(Path(__file__).parent) + "/")
    text = re.sub(here, "", text)
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"(golden_subjects\.py):\d+", r"\1:<line>", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"


def check_golden(name: str, text: str, update: bool) -> None:
    """Compare with tests/golden/<name>.<version>.txt, or write that file."""
    path = GOLDEN / f"{name}.{VERSION}.txt"
    if update:
        path.write_text(text, encoding="utf-8")
        return
    if not path.exists():
        pytest.skip(f"no golden file {path.name}: `pytest --update-golden` under this Python writes it")
    expected = path.read_text(encoding="utf-8")
    if text != expected:
        lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), path.name, "this run", lineterm="")
        pytest.fail(
            "\n".join([*lines, "", "If the change is right: pytest --update-golden, and review the diff."]),
            pytrace=False,
        )
