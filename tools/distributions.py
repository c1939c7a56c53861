"""The repository's distributions: name, directory, version, changelog headings, dependencies on each other.

They are read from packages/*/pyproject.toml, `__about__.py` and CHANGELOG.md; standard library only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (?P<version>\S+) - (?P<date>\d{4}-\d{2}-\d{2})$", re.MULTILINE)
REQUIREMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Package:
    """One distribution of the repository."""

    name: str
    directory: Path
    requirements: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def needs(self) -> frozenset[str]:
        """Names of all distributions that it declares as dependencies, ours and others."""
        return frozenset(requirement_name(text) for text in self.requirements)

    def version(self) -> str:
        about = self.directory / "src" / self.module / "__about__.py"
        found = re.search(r'^__version__ = "([^"]+)"$', about.read_text(encoding="utf-8"), re.MULTILINE)
        if found is None:
            raise ValueError(f'{about}: no line `__version__ = "..."`')
        return found.group(1)

    def changelog_versions(self) -> list[str]:
        """The versions of the changelog's headings `## <version> - <yyyy-mm-dd>`, newest first."""
        text = (self.directory / "CHANGELOG.md").read_text(encoding="utf-8")
        return [match["version"] for match in HEADING.finditer(text)]


def requirement_name(requirement: str) -> str:
    """`torch` of `torch>=2.11,<2.14`."""
    found = REQUIREMENT_NAME.match(requirement)
    if found is None:
        raise ValueError(f"not a requirement: {requirement!r}")
    return found.group().lower().replace("_", "-")


def read_package(directory: Path) -> Package:
    project = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: tuple(texts) for name, texts in project.get("optional-dependencies", {}).items()}
    return Package(project["name"], directory, tuple(project.get("dependencies", ())), extras)


def read_packages(root: Path = ROOT) -> dict[str, Package]:
    """Every distribution under packages/, each after those it needs."""
    found = {p.name: p for p in (read_package(f.parent) for f in sorted(root.glob("packages/*/pyproject.toml")))}
    ordered: dict[str, Package] = {}
    while len(ordered) < len(found):
        ready = [p for p in found.values() if p.name not in ordered and p.needs & found.keys() <= ordered.keys()]
        if not ready:
            raise ValueError(f"packages need each other in a circle: {sorted(found.keys() - ordered.keys())}")
        ordered.update((package.name, package) for package in ready)
    return ordered


def with_downstream(names: Iterable[str], packages: Mapping[str, Package]) -> list[str]:
    """The named packages and everything that needs one of them, directly or not, in dependency order."""
    affected = set(names)
    for package in packages.values():  # in dependency order, so one pass reaches everything
        if package.needs & affected:
            affected.add(package.name)
    return [name for name in packages if name in affected]
