"""Check the import contracts of the root pyproject.toml, and hold the two contract types that import-linter lacks.

`python tools/import_contracts.py [root]` runs import-linter on the source directories of the six packages of
the repository at `root` (default: this one), whatever is installed.

import-linter's graph knows other distributions by their top-level name only, so its own contract types cannot allow torch and
forbid torch._dynamo. `ForbiddenSubmodulesContract` reads the sources themselves, and so also sees imports inside
functions, attribute chains (`torch._dynamo.reset()`) and `importlib.import_module("torch._dynamo")`.

`FacadesContract` keeps packages out of each other's internals: they import facades only, and no module below.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from importlinter import Contract, ContractCheck, fields, output

ROOT = Path(__file__).resolve().parents[1]


class Mention(NamedTuple):
    """One place where a module names a forbidden one."""

    module: str
    line: int
    name: str


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an attribute chain on a plain name, or None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        prefix = dotted(node.value)
        return None if prefix is None else f"{prefix}.{node.attr}"
    return None


def dynamic_import(node: ast.Call) -> str | None:
    """The module named in `import_module("x")` or `__import__("x")`, or None."""
    function = dotted(node.func) or ""
    if function.rpartition(".")[2] not in ("import_module", "__import__") or not node.args:
        return None
    first = node.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all modules that a source text imports or reaches by attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and (name := dotted(node)):
            yield node.lineno, name
        elif isinstance(node, ast.Call) and (name := dynamic_import(node)):
            yield node.lineno, name


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def mentions(module: str, source: str, forbidden: list[str]) -> list[Mention]:
    """The forbidden modules that the text of `module` names, once per line."""
    found = {
        Mention(module, line, bad)
        for line, name in names_in(ast.parse(source))
        for bad in forbidden
        if within(name, bad)
    }
    return sorted(found)


def sources_of(package: str) -> Iterator[tuple[str, Path]]:
    """(module name, file) of every module of an importable package, without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package!r} of [tool.importlinter] root_packages cannot be found")
    top = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


class ForbiddenSubmodulesContract(Contract):
    """No module of the root packages names one of `forbidden`, except those in (or under) `allowed_in`."""

    forbidden = fields.ListField(subfield=fields.StringField())
    allowed_in = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        allowed: list[str] = list(self.allowed_in or [])  # pyright: ignore[reportArgumentType]
        forbidden: list[str] = list(self.forbidden)  # pyright: ignore[reportArgumentType]
        found = [
            mention
            for package in self.session_options["root_packages"]
            for module, path in sources_of(package)
            if not any(within(module, home) for home in allowed)
            for mention in mentions(module, path.read_text(encoding="utf-8"), forbidden)
        ]
        return ContractCheck(kept=not found, metadata={"mentions": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for mention in check.metadata["mentions"]:
            output.print_error(f"{mention.module}:{mention.line} names {mention.name}", bold=False)
        output.new_line()


class FacadesContract(Contract):
    """A root package imports from another root package only modules that `facades` names.

    Imports inside functions count, imports for type checkers do not.
    """

    facades = fields.ListField(subfield=fields.StringField())

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        packages: list[str] = list(self.session_options["root_packages"])
        facades: list[str] = list(self.facades)  # pyright: ignore[reportArgumentType]
        found = [
            detail
            for package in packages
            for other in packages
            if other != package
            for chain_start in modules_of(graph, package)
            for imported in sorted(graph.find_modules_directly_imported_by(chain_start))
            if within(imported, other) and imported not in facades
            for detail in graph.get_import_details(importer=chain_start, imported=imported)
        ]
        return ContractCheck(kept=not found, metadata={"imports": found})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for found in check.metadata["imports"]:
            place = f"{found['importer']}:{found['line_number']}"
            output.print_error(f"{place} reaches behind a facade: {found['line_contents']}", bold=False)
        output.new_line()


def modules_of(graph: Any, package: str) -> list[str]:
    """All modules of a root package, in order."""
    return sorted(module for module in graph.modules if within(module, package))


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]).resolve() if arguments else ROOT
    sys.path[:0] = [str(root / "tools"), *(str(path) for path in sorted(root.glob("packages/*/src")))]
    os.chdir(root)
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    status = lint_imports(config_filename=str(root / "pyproject.toml"), no_cache=True)
    return 0 if status == EXIT_STATUS_SUCCESS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
