"""Tests of bootstrap.py: what it says about machines that lack something, and that it works once and not twice."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import bootstrap

STARTERS = ["bootstrap.py", "demo.py", "check.py"]


@pytest.fixture
def fake(tmp_path: Path):
    """Make an executable that prints a text, and give its path."""

    def make(name: str, prints: str, status: int = 0) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {status}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


@pytest.mark.parametrize("name", STARTERS)
def test_old_pythons_can_parse_what_starts_first(name: str) -> None:
    source = Path(bootstrap.TOOLS, name).read_text()
    tree = ast.parse(source, feature_version=(3, 4))
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr)), ast.dump(node)
        assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__")


@pytest.mark.parametrize("version", ["3.6", "3.8", "3.10"])
def test_an_old_python_is_told_so(version: str) -> None:
    python = bootstrap.find_interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    run = subprocess.run([python, os.path.join(bootstrap.TOOLS, "check.py")], capture_output=True, text=True)
    assert run.returncode == 2
    assert f"Treadle needs CPython 3.11 to 3.13; this is {version}" in run.stderr


@pytest.mark.parametrize(
    ("version", "name", "expected"),
    [
        ((3, 11, 0), "cpython", None),
        ((3, 13, 9), "cpython", None),
        ((3, 10, 4), "cpython", "this is 3.10.4"),
        ((3, 14, 0), "cpython", "this is 3.14.0"),
        ((3, 11, 0), "pypy", "is pypy"),
    ],
)
def test_why_not_python(version: tuple[int, ...], name: str, expected: str | None) -> None:
    reason = bootstrap.why_not_python(version, name)
    assert reason is None if expected is None else expected in str(reason)


def test_why_not_pip(monkeypatch: pytest.MonkeyPatch, fake) -> None:
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(bootstrap.sys, "executable", fake("without", "/usr/bin/python3: No module named pip", 1))
    assert "pip is missing" in bootstrap.why_not_pip()
    monkeypatch.setattr(bootstrap.sys, "executable", fake("old", "pip 21.2.4 from somewhere"))
    assert "pip 21.2 is too old, 22.3 is needed" in bootstrap.why_not_pip()
    monkeypatch.setattr(bootstrap.sys, "executable", fake("new", "pip 24.0 from somewhere"))
    assert bootstrap.why_not_pip() is None
    monkeypatch.setattr(bootstrap.sys, "executable", fake("broken", "Segmentation fault", 1))
    assert "does not work" in bootstrap.why_not_pip()


def test_an_environment_without_pip_is_served_by_the_interpreter_it_was_made_from(monkeypatch, fake) -> None:
    """`.venv/bin/python tools/check.py`: our own environments are made without pip."""
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None if name == "pip" else name)
    monkeypatch.setattr(bootstrap, "base_interpreter", lambda: fake("base", "pip 24.0 from somewhere"))
    assert bootstrap.why_not_pip() is None


def test_another_torch_leaves_the_other_pins() -> None:
    wanted = bootstrap.requirements_beside("2.11.0")
    assert "torch==2.11.0" in wanted and "setuptools" in wanted
    assert [line for line in wanted if line.startswith("transformers==")]
    assert {line.split("==")[0] for line in wanted} == set(bootstrap.requirement_lines())


def test_why_not_compiler(monkeypatch: pytest.MonkeyPatch, fake) -> None:
    assert bootstrap.why_not_compiler("no-such-compiler") is not None
    assert "is too old, 9 is needed" in bootstrap.why_not_compiler(fake("g++-old", "7.5.0"))
    assert bootstrap.why_not_compiler(fake("g++-new", "13.2.0")) is None
    assert "does not work" in bootstrap.why_not_compiler(fake("g++-broken", "error", 1))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler is missing" in bootstrap.why_not_compiler()


def test_everything_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(bootstrap, "why_not_pip", lambda: "pip is missing")
    with pytest.raises(bootstrap.SetupError, match="pip is missing\nno-such-compiler is missing"):
        bootstrap.check_machine()


def test_find_interpreter_knows_this_one_and_not_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    (tmp_path / f"python{version}").symlink_to(bootstrap.base_interpreter())
    monkeypatch.setenv("PATH", str(tmp_path))
    found = bootstrap.find_interpreter(version)
    assert found == str(tmp_path / f"python{version}")
    assert bootstrap.find_interpreter("2.1") is None


def test_an_environment_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = bootstrap.Environment(str(tmp_path / "env"), bootstrap.base_interpreter(), ["pip-is-faked"], [])
    installs: list[list[str]] = []
    monkeypatch.setattr(environment, "pip", lambda title, arguments: installs.append(arguments))
    python = environment.ensure()
    assert len(installs) == 2  # dependencies, packages
    assert subprocess.check_output([python, "-c", "import sys; print(sys.prefix)"], text=True).strip() == str(
        tmp_path / "env"
    )
    assert environment.ensure() == python
    assert len(installs) == 2
    environment.requirements = ["something-else"]
    environment.ensure()
    assert len(installs) == 4


def test_an_interrupted_set_up_is_taken_up_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = bootstrap.Environment(str(tmp_path / "env"), bootstrap.base_interpreter(), ["pip-is-faked"], [])
    titles: list[str] = []

    def fail_on_the_packages(title: str, arguments: list[str]) -> None:
        titles.append(title)
        if "dependencies" not in title:
            raise bootstrap.SetupError("no")

    monkeypatch.setattr(environment, "pip", fail_on_the_packages)
    with pytest.raises(bootstrap.SetupError):
        environment.ensure()
    with pytest.raises(bootstrap.SetupError):
        environment.ensure()
    assert ["dependencies" in title for title in titles] == [True, False, False]


def test_a_failing_pip_shows_its_own_words(tmp_path: Path) -> None:
    environment = bootstrap.Environment(str(tmp_path / "env"), bootstrap.base_interpreter(), ["./no-such-place"], [])
    with pytest.raises(bootstrap.SetupError, match="no-such-place"):
        environment.ensure()
    assert environment.have() == {}


def test_a_tree_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", str(tmp_path / "nowhere"))
    with pytest.raises(bootstrap.SetupError, match=r"nowhere cannot be written \(No such file or directory\)"):
        bootstrap.set_up(bootstrap.Environment(str(tmp_path / "env"), sys.executable, [], []))


def test_an_environment_that_is_up_to_date_needs_no_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "only_one_at_a_time", lambda: pytest.fail("locked"))
    environment = bootstrap.Environment(str(tmp_path), sys.executable, [], [])
    environment.note(environment.wanted())
    assert bootstrap.set_up(environment) == environment.python
