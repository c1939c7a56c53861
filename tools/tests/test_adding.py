"""Replays docs/adding.md, whose examples are code of this repository.

A section's ```diff blocks are taken out of a copy of the sources, its ```python program fails on the copy, the blocks are put back, and the
program passes. So a path, a name or a line that the page gives cannot go stale.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding.md"
BLOCK = re.compile(r"^```(diff|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# Section -> the most files that an addition of this kind may touch.
SECTIONS = {
    "An opcode": 1,
    "A rule for a function": 1,
    "An operator": 2,
    "A lowering": 1,
    "A guard kind": 3,
    "A break reason": 1,
    "A backend": 0,
    "A target": 0,
}


@dataclass(frozen=True)
class Section:
    """One kind of addition: its heading, the changes, and the programs that show them."""

    title: str
    diffs: tuple[str, ...]
    programs: tuple[str, ...]

    @property
    def files(self) -> set[str]:
        """The files that the changes touch, relative to the repository."""
        return {name for diff in self.diffs for name in re.findall(r"^\+\+\+ b/(\S+)", diff, re.MULTILINE)}


def sections() -> dict[str, Section]:
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for part in parts:
        title, _, text = part.partition("\n")
        blocks = BLOCK.findall(text)
        found[title.strip()] = Section(
            title.strip(),
            tuple(body for kind, body in blocks if kind == "diff"),
            tuple(body for kind, body in blocks if kind == "python"),
        )
    return found


# What examples read: sources, the second target, the page that tells the contract.
COPIED = ("packages/*/src", "packages/*/csrc", "packages/treadle-codegen/tests/interpreter_target", "docs/contracts.md")


def copy_sources(target: Path) -> str:
    """Copy what the examples need to `target`; returns a PYTHONPATH of the copied packages."""
    for pattern in COPIED:
        for found in sorted(ROOT.glob(pattern)):
            copied = target / found.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            if found.is_dir():
                shutil.copytree(found, copied, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(found, copied)
    return os.pathsep.join(map(str, sorted(target.glob("packages/*/src"))))


def apply(diff: str, directory: Path, *options: str) -> None:
    command = ["git", "apply", "--recount", *options, "-"]
    applied = subprocess.run(command, input=diff, cwd=directory, capture_output=True, text=True)
    assert applied.returncode == 0, f"{applied.stderr}\n{diff}"


def run(program: str, directory: Path, path: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path, "TREADLE_CACHE_DIR": str(directory / "cache")}
    script = directory / "example.py"  # a file, because the tracer reads source lines for its messages
    script.write_text(program, encoding="utf-8")
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, cwd=directory)


def test_every_kind_of_addition_has_its_section() -> None:
    assert list(sections()) == list(SECTIONS)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_example_works_as_written(title: str, tmp_path: Path) -> None:
    section = sections()[title]
    assert len(section.programs) == 1, "one program shows that the addition works"
    assert len(section.files) == SECTIONS[title], sorted(section.files)
    (program,) = section.programs
    path = copy_sources(tmp_path)
    if section.diffs:
        for diff in reversed(section.diffs):
            apply(diff, tmp_path, "--reverse")
        assert run(program, tmp_path, path).returncode != 0, "the program passes without the addition"
        for diff in section.diffs:
            apply(diff, tmp_path)
    found = run(program, tmp_path, path)
    assert found.returncode == 0, found.stderr[-3000:]
