"""Every opcode of the running CPython has a handler. Needs no torch: the registrations are read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import treadle_tracer
from treadle_tracer.bytecode import OPS

SOURCES = sorted((Path(treadle_tracer.__file__).parent / "trace").glob("ops_*.py"))


def registered() -> list[str]:
    """Opcode names given to `@op(...)` and `unsupported(...)`."""
    names: list[str] = []
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if node.func.id == "op":
                names += texts
            elif node.func.id == "unsupported":
                names += texts[0].split()
    return names


def test_every_opcode_has_a_handler():
    assert set(OPS) - set(registered()) == set()


def test_no_opcode_is_registered_twice():
    names = registered()
    assert sorted(names) == sorted(set(names))
