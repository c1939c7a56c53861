"""Tests of run_tests.py on steps made for the purpose: what counts as failed, what is shown, how it closes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import bootstrap
import run_tests
from run_tests import Outcome, Step

SUITE = "def test_good(): pass\n\ndef test_bad(): assert 1 == 2\n\nimport pytest\n\n@pytest.mark.skip\ndef test_not(): pass\n"


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_tests, "LOGS", tmp_path / "logs")
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


def pytest_step(path: Path) -> Step:
    return run_tests.pytest_step("some tests", sys.executable, str(path))


def test_a_pytest_step_counts_its_tests(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SUITE)
    outcome = pytest_step(tmp_path).run()
    assert outcome.failed
    assert outcome.counts == {"failed": 1, "skipped": 1, "passed": 1}
    assert outcome.log is not None
    assert "assert 1 == 2" in outcome.log.read_text()


def test_a_pytest_step_that_collects_nothing_has_failed(tmp_path: Path) -> None:
    outcome = pytest_step(tmp_path).run()
    assert outcome.failed
    assert outcome.counts == {"errors": 1}


def test_a_pytest_step_that_dies_has_failed(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("import os\n\ndef test_dies():\n    os.abort()\n")
    outcome = pytest_step(tmp_path).run()
    assert outcome.failed
    assert outcome.counts == {"errors": 1}


def test_a_command_counts_as_one_test() -> None:
    assert Step("fine", (sys.executable, "-c", "pass")).run().counts == {"passed": 1}
    outcome = Step("not fine", (sys.executable, "-c", "raise SystemExit(3)")).run()
    assert (outcome.counts, outcome.failed) == ({"failed": 1}, True)


def test_a_step_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tests, "STEP_TIMEOUT", 0.2)
    outcome = Step("slow", (sys.executable, "-c", "import time; time.sleep(60)")).run()
    assert outcome.failed
    assert outcome.log is not None
    assert "stopped after" in outcome.log.read_text()


def test_run_all_shows_the_end_of_a_failing_log(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        Step("good", (sys.executable, "-c", "print('not shown')")),
        Step("bad", (sys.executable, "-c", "raise SystemExit('what went wrong')")),
    ]
    outcomes = run_tests.run_all(steps, jobs=2)
    shown = capsys.readouterr().out
    assert {name: outcome.failed for name, outcome in outcomes.items()} == {"good": False, "bad": True}
    assert "    | what went wrong" in shown
    assert "not shown" not in shown


def test_closing_line_adds_up() -> None:
    outcomes = {"a": Outcome({"passed": 3, "skipped": 1}), "b": Outcome({"passed": 2, "failed": 1}, failed=True)}
    assert run_tests.closing_line(outcomes, 1.5).strip("= ") == "1 failed, 5 passed, 1 skipped in 1.50s"
    assert run_tests.closing_line({}, 0.0).strip("= ") == "nothing ran in 0.00s"


def test_every_package_has_a_step() -> None:
    names = [step.name for step in run_tests.all_steps("/env/bin/python", {"3.12": "/other/bin/python"})]
    assert len(names) == len(set(names))
    for package in bootstrap.PACKAGES:
        assert f"{package} tests" in names
    assert {"tools tests", "distributions", "lint", "import contracts", "types"} <= set(names)
    assert "treadle-frame tests, Python 3.12" in names


@pytest.mark.parametrize("what", ["torch 2.11.0", "Python 3.13"])
def test_another_torch_or_python_runs_what_depends_on_torch(what: str, capsys) -> None:
    with_torch = [f"{name} tests" for name in reversed(bootstrap.PACKAGES) if name != "treadle-frame"]
    wanted = [f"{name}, {what}" for name in ["integration tests 1 of 2", "integration tests 2 of 2", *with_torch]]
    assert [step.name for step in run_tests.torch_steps("/env/bin/python", what)] == wanted
    option, version = what.split()
    assert run_tests.main([f"--{option.lower()}", version, "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == wanted


def test_every_integration_test_is_in_one_part() -> None:
    folder = run_tests.ROOT / "integration-tests"
    parts = run_tests.integration_steps("/env/bin/python")
    named = [word for step in parts for word in step.command if word.startswith("integration-tests/")]
    assert len(parts) == run_tests.INTEGRATION_PARTS
    assert sorted(run_tests.ROOT / name for name in named) == sorted(folder.rglob("test_*.py"))


def test_an_environment_that_cannot_be_made_is_said_and_no_traceback(monkeypatch, capsys) -> None:
    def fail(version: str) -> str:
        raise bootstrap.SetupError(f"no torch {version} here")

    for option, version in (("torch", "2.11.0"), ("python", "3.13")):
        monkeypatch.setattr(bootstrap, f"ensure_{option}", fail)
        assert run_tests.main([f"--{option}", version]) == 2
        assert f"no torch {version} here" in capsys.readouterr().err


def test_every_named_path_exists() -> None:
    for step in [
        *run_tests.all_steps(sys.executable, {"3.12": sys.executable}),
        *run_tests.torch_steps(sys.executable, "torch 2.11.0"),
    ]:
        for word in step.command:
            if word.startswith(("packages/", "tools/", "integration-tests")):
                assert (run_tests.ROOT / word).exists(), word
