"""Every Python example of every README runs, and links between documents lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from distributions import ROOT

READMES = sorted([ROOT / "README.md", *ROOT.glob("packages/*/README.md")])
EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def name_of(path: Path) -> str:
    return str(path.parent.relative_to(ROOT))


@pytest.mark.parametrize("path", READMES, ids=name_of)
def test_the_examples_of_a_readme_run(path: Path, tmp_path: Path) -> None:
    examples = EXAMPLE.findall(path.read_text(encoding="utf-8"))
    assert examples, f"{path} has no ```python example"
    # One script per README: a later block may use what an earlier one defined. As a file, because tracers read sources.
    script = tmp_path / "example.py"
    script.write_text("\n".join(examples), encoding="utf-8")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("path", [*READMES, ROOT / "CONTRIBUTING.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    missing = [
        target for target in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / target).exists()
    ]
    assert missing == []


def test_every_package_has_a_readme() -> None:
    assert len(READMES) == 1 + len(list(ROOT.glob("packages/*/pyproject.toml")))
