"""Modules of the tracer import each other in one direction only, imports for type checking and imports inside functions included."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import treadle_tracer

ROOT = Path(treadle_tracer.__file__).parent
MODULES = {
    ".".join(("treadle_tracer", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def imports_of(name: str) -> set[str]:
    """The modules of the tracer that a module names in any import statement."""
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.update(f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names)
    return (found & MODULES.keys()) - {name}


def test_there_is_no_import_cycle():
    TopologicalSorter({name: imports_of(name) for name in MODULES}).prepare()  # raises CycleError, which names one
