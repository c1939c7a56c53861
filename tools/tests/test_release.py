"""Tests of distributions.py and release.py on a small repository made for the purpose, and on this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import bootstrap
import release
from distributions import ROOT, Package, read_packages, requirement_name, with_downstream

NEEDS = {"base": [], "left": ["base>=1"], "right": ["base", "other~=2.0"], "top": ["left", "right"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four packages: left and right need base, top needs both."""
    for name, needs in NEEDS.items():
        directory = tmp_path / "packages" / name
        (directory / "src" / name).mkdir(parents=True)
        (directory / "pyproject.toml").write_text(f'[project]\nname = "{name}"\ndependencies = {needs!r}\n')
        (directory / "src" / name / "__about__.py").write_text('__version__ = "1.2.0"\n')
        (directory / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.0 - 2026-11-20\n\n- x\n\n## 1.1.0 - 2026-01-01\n")
    return tmp_path


@pytest.fixture
def packages(root: Path) -> dict[str, Package]:
    return read_packages(root)


def test_packages_come_in_dependency_order(packages: dict[str, Package]) -> None:
    assert list(packages) == ["base", "left", "right", "top"]
    assert packages["right"].needs == {"base", "other"}


def test_packages_in_a_circle_are_refused(root: Path) -> None:
    (root / "packages/base/pyproject.toml").write_text('[project]\nname = "base"\ndependencies = ["top"]\n')
    with pytest.raises(ValueError, match="in a circle"):
        read_packages(root)


@pytest.mark.parametrize(
    ("text", "name"),
    [("torch>=2.11,<2.14", "torch"), ("treadle_codegen[triton]", "treadle-codegen"), ("A.b ~= 1", "a.b")],
)
def test_requirement_name(text: str, name: str) -> None:
    assert requirement_name(text) == name


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["packages/base/src/base/x.py"], ["base", "left", "right", "top"]),
        (["packages/left/README.md"], ["left", "top"]),
        (["packages/top/tests/test_x.py"], ["top"]),
        (["packages/left/a", "packages/right/b"], ["left", "right", "top"]),
        (["README.md", "docs/contracts.md", "benchmarks/models.py"], []),
        (["tools/release.py"], ["base", "left", "right", "top"]),
        (["packages/gone/src/x.py"], ["base", "left", "right", "top"]),
        ([], []),
    ],
)
def test_affected_by(packages: dict[str, Package], changed: list[str], expected: list[str]) -> None:
    assert release.affected_by(changed, packages) == expected


def test_an_unknown_place_is_an_error(packages: dict[str, Package]) -> None:
    with pytest.raises(release.ReleaseError, match="stray"):
        release.affected_by(["stray/file.py"], packages)


def test_every_top_level_path_of_the_repository_is_known() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    tops = {path.partition("/")[0] for path in listed.stdout.splitlines()}
    assert tops - {"packages"} <= release.CONCERNS_ALL.keys()


def test_changed_paths(root: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "work")
    (root / "packages/left/new.py").write_text("")
    git("add", ".")
    git("commit", "-m", "second")
    assert release.changed_paths("main", root) == ["packages/left/new.py"]
    with pytest.raises(release.ReleaseError, match="nowhere"):
        release.changed_paths("nowhere", root)


def test_check_tag_gives_name_and_version(packages: dict[str, Package]) -> None:
    assert release.check_tag("left-v1.2.0", packages) == ("left", "1.2.0")


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("1.2.0", "not of the form"),
        ("left-1.2.0", "not of the form"),
        ("left-v1.2", "not of the form"),
        ("middle-v1.2.0", "none of base, left, right, top"),
        ("left-v1.3.0", "__about__.py says 1.2.0"),
    ],
)
def test_check_tag_refuses(packages: dict[str, Package], tag: str, message: str) -> None:
    with pytest.raises(release.ReleaseError, match=message):
        release.check_tag(tag, packages)


def test_check_tag_refuses_a_changelog_that_lags_behind(root: Path, packages: dict[str, Package]) -> None:
    (root / "packages/left/CHANGELOG.md").write_text("## Unreleased\n\n## 1.1.0 - 2026-01-01\n")
    with pytest.raises(release.ReleaseError, match=r"heading of left/CHANGELOG.md says 1.1.0"):
        release.check_tag("left-v1.2.0", packages)


def test_main_writes_workflow_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "out"))
    version = read_packages()["treadle"].version()
    assert release.main(["check", f"treadle-v{version}"]) == 0
    assert release.main(["check", "treadle-v99.0.0"]) == 1
    assert release.main(["changed"]) == 0
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[:2] == ["name=treadle", f"version={version}"]
    assert lines[2].startswith('packages=["treadle-frame"')


def test_every_package_can_be_released() -> None:
    packages = read_packages()
    for name, package in packages.items():
        assert release.check_tag(f"{name}-v{package.version()}", packages) == (name, package.version())
        assert (package.directory / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_bootstrap_installs_every_package_after_what_it_needs() -> None:
    packages = read_packages()
    assert sorted(bootstrap.PACKAGES) == sorted(packages)
    for position, name in enumerate(bootstrap.PACKAGES):
        assert packages[name].needs & packages.keys() <= set(bootstrap.PACKAGES[:position])


def test_downstream_of_frame_and_shapes() -> None:
    packages = read_packages()
    assert with_downstream(["treadle-frame"], packages) == ["treadle-frame", "treadle-tracer", "treadle"]
    assert set(with_downstream(["treadle-shapes"], packages)) == packages.keys() - {"treadle-frame"}
