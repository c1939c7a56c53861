"""Tests of the rules of check_distributions.py; the builds and installations themselves are the tool's own run."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_distributions import MUST_NOT_BRING, CheckError, find, last_json, run, why_not_as_declared
from distributions import Package, read_packages

TORCH_BRINGS = {"torch", "sympy", "mpmath"}
PACKAGES = read_packages()
VERSIONS = {name: package.version() for name, package in PACKAGES.items()}


def installed(*names: str) -> dict[str, str]:
    return {name: VERSIONS.get(name, "1.0") for name in names}


@pytest.mark.parametrize(
    ("name", "came"),
    [
        ("treadle-frame", ["treadle-frame"]),
        ("treadle-shapes", ["treadle-shapes", "sympy", "mpmath"]),
        ("treadle-tracer", ["treadle-tracer", "treadle-frame", "treadle-shapes", *TORCH_BRINGS]),
        ("treadle-codegen", ["treadle-codegen", "treadle-shapes", *TORCH_BRINGS, "platformdirs"]),
        ("treadle", [*PACKAGES, *TORCH_BRINGS, "scipy", "numpy", "platformdirs"]),
    ],
)
def test_what_is_declared_is_accepted(name: str, came: list[str]) -> None:
    assert why_not_as_declared(PACKAGES[name], installed(*came), TORCH_BRINGS, PACKAGES) is None


@pytest.mark.parametrize(
    ("name", "came", "message"),
    [
        ("treadle-frame", ["treadle-frame", "numpy"], "too much ['numpy']"),
        ("treadle-shapes", ["treadle-shapes", "sympy", "mpmath", "torch"], "brings ['torch'], which it must not"),
        ("treadle-shapes", ["treadle-shapes", "sympy"], "too little ['mpmath']"),
        (
            "treadle-tracer",
            ["treadle-tracer", "treadle-frame", "treadle-shapes", "treadle-codegen", *TORCH_BRINGS],
            "brings ['treadle-codegen'], which it must not",
        ),
    ],
)
def test_what_is_not_declared_is_refused(name: str, came: list[str], message: str) -> None:
    assert message in str(why_not_as_declared(PACKAGES[name], installed(*came), TORCH_BRINGS, PACKAGES))


def test_a_stranger_of_the_same_name_is_refused() -> None:
    came = {**installed("treadle-shapes", "sympy", "mpmath"), "treadle-shapes": "99.0"}
    assert "not this tree's" in str(why_not_as_declared(PACKAGES["treadle-shapes"], came, TORCH_BRINGS, PACKAGES))


def test_the_stated_rules_name_real_packages() -> None:
    ours = {name for names in MUST_NOT_BRING.values() for name in names if name.startswith("treadle")}
    assert ours <= PACKAGES.keys()
    assert MUST_NOT_BRING.keys() <= PACKAGES.keys()


def test_find_wants_exactly_one(tmp_path: Path) -> None:
    package: Package = PACKAGES["treadle-frame"]
    with pytest.raises(CheckError, match="expected one"):
        find(package, tmp_path, ".whl")
    for tag in ("cp310-cp310", "cp399-cp399"):
        (tmp_path / f"treadle_frame-{VERSIONS['treadle-frame']}-{tag}-linux_x86_64.whl").touch()
    with pytest.raises(CheckError, match="found \\[\\]"):
        find(package, tmp_path, ".whl")
    pure = tmp_path / f"treadle_frame-{VERSIONS['treadle-frame']}-py3-none-any.whl"
    pure.touch()
    assert find(package, tmp_path, ".whl") == pure


def test_run_tells_what_failed(tmp_path: Path) -> None:
    assert run(["echo", "hello"], tmp_path) == "hello\n"
    with pytest.raises(CheckError, match=r"status 3:\nwhy"):
        run(["sh", "-c", "echo why; exit 3"], tmp_path)


def test_last_json_reads_past_warnings() -> None:
    assert last_json('{"a": 1}\nUserWarning: {x}\n{"b": 2}\nwarn()\n') == {"b": 2}
