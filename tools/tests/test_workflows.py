"""The workflows say what CONTRIBUTING.md promises: one release per tag, publishing apart from building, pinned actions."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from distributions import ROOT, read_packages

WORKFLOWS = ROOT / ".github" / "workflows"
PACKAGES = list(read_packages())
EVERY_FILE = sorted([*WORKFLOWS.glob("*.yml"), *ROOT.glob(".github/actions/*/action.yml")])
PUBLISHER = "pypa/gh-action-pypi-publish@"


def load(path: Path) -> dict:
    # In YAML 1.1, which PyYAML reads, the key `on` is the value True.
    return {("on" if key is True else key): value for key, value in yaml.safe_load(path.read_text()).items()}


def release(name: str) -> dict:
    return load(WORKFLOWS / f"release-{name}.yml")


def test_every_package_has_a_release_workflow_and_no_other_has() -> None:
    assert {path.name for path in WORKFLOWS.glob("release-*.yml")} == {f"release-{name}.yml" for name in PACKAGES}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_release_starts_from_its_own_tag_only(name: str) -> None:
    assert release(name)["on"] == {"push": {"tags": [f"{name}-v*"]}}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_release_checks_builds_tests_and_then_publishes(name: str) -> None:
    jobs = release(name)["jobs"]
    assert 'release.py check "$GITHUB_REF_NAME"' in str(jobs["check"])
    assert jobs["build"]["needs"] == "check"
    assert "build" in jobs["test"]["needs"]
    assert jobs["publish"]["needs"] == "test"
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert [step["with"] for step in jobs["test"]["steps"] if "test-distribution" in step.get("uses", "")] == [
        {"name": name}
    ]


@pytest.mark.parametrize("name", PACKAGES)
def test_only_the_publishing_job_may_publish(name: str) -> None:
    workflow = release(name)
    assert workflow["permissions"] == {"contents": "read"}
    for job_name, job in workflow["jobs"].items():
        publishes = any(step.get("uses", "").startswith(PUBLISHER) for step in job["steps"])
        assert publishes == (job_name == "publish")
        assert job.get("permissions") == ({"id-token": "write"} if publishes else None)
    assert workflow["jobs"]["publish"]["environment"]["name"] == f"pypi-{name}"
    assert "secrets." not in str(workflow)


def test_the_frame_builds_a_wheel_per_cpython() -> None:
    assert release("treadle-frame")["jobs"]["build"]["strategy"]["matrix"]["cpython"] == ["cp311", "cp312", "cp313"]


def test_the_other_releases_differ_in_the_name_only() -> None:
    texts = {
        (WORKFLOWS / f"release-{name}.yml").read_text().replace(name, "NAME")
        for name in PACKAGES
        if name != "treadle-frame"
    }
    assert len(texts) == 1


@pytest.mark.parametrize("path", EVERY_FILE, ids=lambda path: path.name)
def test_actions_are_pinned_and_checkouts_keep_no_credentials(path: Path) -> None:
    text = path.read_text()
    for used in re.findall(r"uses: (\S+)", text):
        assert used.startswith("./") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used), used
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")


def test_ci_covers_three_pythons_the_distributions_and_everything() -> None:
    jobs = load(WORKFLOWS / "ci.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert "release.py changed" in str(jobs["changes"])
    assert "check_distributions.py" in str(jobs["distributions"])
    assert "bash .ci/run" in str(jobs["everything"])


def test_scripts_named_in_workflows_exist() -> None:
    for path in EVERY_FILE:
        for script in re.findall(r"\b(?:tools|benchmarks|\.ci)/[\w./]+", path.read_text()):
            assert (ROOT / script).exists(), f"{path.name}: {script}"


def test_actionlint() -> None:
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed; ci.yml runs it")
    run = subprocess.run([program], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
