"""Every check of the repository: tests of each package, of the tools and of the whole stack, lint, contracts, types.

    python3 tools/check.py                  everything
    python3 tools/check.py --list           the names of the steps
    python3 tools/check.py --only shapes    the steps whose name contains "shapes" (may be given several times)
    python3 tools/check.py --torch 2.11.0   the tests that use torch, with that release, in an environment of its own
    python3 tools/check.py --python 3.13    the tests that use torch, on that CPython, in an environment of its own

Each step is a process of its own with its output in .treadle/check/<step>.log; two run at a time. The closing line has
pytest's format and counts all steps; a step other than pytest counts as one test. Exit status: 0 if nothing failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import bootstrap

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".treadle" / "check"
OTHER_PYTHONS: tuple[str, ...] = ("3.12", "3.13")
# Tests that need no torch and run on every CPython.
PLAIN_TESTS = {
    "treadle-frame": "packages/treadle-frame/tests",
    "treadle-shapes": "packages/treadle-shapes/tests",
    "treadle-tracer bytecode": "packages/treadle-tracer/tests/bytecode",
}
INTEGRATION_PARTS = 2  # steps that share the integration tests, as long together as all others
# Half of the integration tests takes ten minutes beside another step on two cores, more on a busy machine.
STEP_TIMEOUT = 60 * 60.0


@dataclass
class Outcome:
    """Counts of a step's tests by result, and the end of its log if it failed."""

    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    failed: bool = False
    log: Path | None = None


FIXED_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Step:
    """One command. `pytest`: it writes its counts as JUnit XML."""

    name: str
    command: tuple[str, ...]
    pytest: bool = False

    @property
    def file_name(self) -> str:
        return "".join(c if c.isalnum() or c in ".-" else "-" for c in self.name)

    def run(self) -> Outcome:
        log, report = LOGS / f"{self.file_name}.log", LOGS / f"{self.file_name}.xml"
        report.unlink(missing_ok=True)
        command = [*self.command, f"--junitxml={report}"] if self.pytest else list(self.command)
        # With CI set, Hypothesis draws the same examples in every run; a run of pytest by hand draws new ones.
        environment = {"CI": "true"} | os.environ | FIXED_ENVIRONMENT
        start = time.monotonic()
        with log.open("wb") as output:
            try:
                status = subprocess.run(
                    command, cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=STEP_TIMEOUT
                ).returncode
            except subprocess.TimeoutExpired:
                output.write(f"\nstopped after {STEP_TIMEOUT:.0f} s\n".encode())
                status = 124
        counts = counts_of(report) if self.pytest else {"passed" if status == 0 else "failed": 1}
        if status not in (0, 1) and self.pytest:
            counts["errors"] = counts.get("errors", 0) + 1
        return Outcome(counts, time.monotonic() - start, status != 0, log)


def counts_of(report: Path) -> dict[str, int]:
    """The counts of a JUnit XML file: passed, failed, errors, skipped. All are 0 if there is no file."""
    if not report.exists():
        return {}
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        for key in totals:
            totals[key] += int(suite.get(key, "0"))
    failed, errors, skipped = totals["failures"], totals["errors"], totals["skipped"]
    passed = totals["tests"] - failed - errors - skipped
    counts = {"failed": failed, "errors": errors, "skipped": skipped, "passed": passed}
    return {name: count for name, count in counts.items() if count}


def pytest_step(name: str, python: str, *paths: str) -> Step:
    return Step(name, (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", *paths), pytest=True)


def integration_steps(python: str, what: str = "") -> list[Step]:
    """The integration tests in parts of every n-th file by name. `what` ends the names of the steps."""
    found = (ROOT / "integration-tests").rglob("test_*.py")
    files = sorted(path.relative_to(ROOT).as_posix() for path in found)
    parts = [files[k::INTEGRATION_PARTS] for k in range(INTEGRATION_PARTS)]
    return [
        pytest_step(f"integration tests {k} of {INTEGRATION_PARTS}{what}", python, *part)
        for k, part in enumerate(parts, 1)
    ]


def static_steps(python: str) -> Iterator[Step]:
    beside = str(Path(python).parent)
    yield Step("lint", (f"{beside}/ruff", "check"))
    yield Step("format", (f"{beside}/ruff", "format", "--check"))
    yield Step("import contracts", (python, "tools/import_contracts.py"))
    yield Step("types", (f"{beside}/basedpyright", "--pythonpath", python))


def all_steps(python: str, other_pythons: dict[str, str]) -> list[Step]:
    """Every step. The long ones come first, so that two at a time end together."""
    return [
        Step("distributions", (python, "tools/check_distributions.py")),
        *integration_steps(python),
        *(pytest_step(f"{name} tests", python, f"packages/{name}/tests") for name in reversed(bootstrap.PACKAGES)),
        pytest_step("tools tests", python, "tools/tests"),
        *(
            pytest_step(f"{name} tests, Python {version}", other, path)
            for version, other in other_pythons.items()
            for name, path in PLAIN_TESTS.items()
        ),
        *static_steps(python),
    ]


def torch_steps(python: str, what: str) -> list[Step]:
    """The steps that depend on torch, in an environment with another release of it or another CPython: `what` ("torch 2.11.0")."""
    with_torch = [name for name in reversed(bootstrap.PACKAGES) if name != "treadle-frame"]
    return [
        *integration_steps(python, f", {what}"),
        *(pytest_step(f"{name} tests, {what}", python, f"packages/{name}/tests") for name in with_torch),
    ]


def prepare(options: argparse.Namespace) -> list[Step]:
    """Set up the environments of the chosen steps and return the steps. --list sets up none. Raises bootstrap.SetupError."""
    if options.torch:
        return torch_steps("" if options.list else bootstrap.ensure_torch(options.torch), f"torch {options.torch}")
    if options.python:
        return torch_steps("" if options.list else bootstrap.ensure_python(options.python), f"Python {options.python}")
    others = dict.fromkeys(OTHER_PYTHONS, "") if options.list else prepare_other_pythons()
    return all_steps(sys.executable, others)


def prepare_other_pythons() -> dict[str, str]:
    """version -> interpreter of its environment. Prints a line for a version that this machine does not have."""
    found = {}
    for version in OTHER_PYTHONS:
        if sys.version_info[:2] == tuple(map(int, version.split("."))):
            continue
        python = bootstrap.ensure_plain(version)
        if python is None:
            print(f"[set-up] no CPython {version} on this machine: its tests do not run", flush=True)
        else:
            found[version] = python
    return found


def describe(counts: dict[str, int]) -> str:
    order = ("failed", "errors", "passed", "skipped")
    return ", ".join(f"{counts[name]} {name}" for name in order if counts.get(name)) or "nothing ran"


def run_all(steps: Sequence[Step], jobs: int) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(step.run): step for step in steps}
        for future in as_completed(futures):
            step, outcome = futures[future], future.result()
            outcomes[step.name] = outcome
            verdict = "FAILED" if outcome.failed else "ok"
            line = f"[{len(outcomes):2}/{len(steps)}] {verdict:6} {step.name}: {describe(outcome.counts)}"
            print(f"{line} ({outcome.seconds:.0f} s)", flush=True)
            if outcome.failed and outcome.log:
                tail = outcome.log.read_text(errors="replace").splitlines()[-40:]
                print("\n".join(f"    | {text}" for text in tail), flush=True)
    return outcomes


def closing_line(outcomes: dict[str, Outcome], seconds: float) -> str:
    """A closing line like pytest's, over all steps."""
    total: dict[str, int] = {}
    for outcome in outcomes.values():
        for name, count in outcome.counts.items():
            total[name] = total.get(name, 0) + count
    return f" {describe(total)} in {seconds:.2f}s ".center(100, "=")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/check.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="TEXT", help="run the steps whose name holds this text")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--torch", metavar="VERSION", help="run what uses torch beside this release of it, and no more")
    other.add_argument("--python", choices=OTHER_PYTHONS, help="run what uses torch on this CPython, and no more")
    parser.add_argument("--list", action="store_true", help="name the steps and stop")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="steps at a time (default 2)")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        steps = prepare(options)
    except bootstrap.SetupError as error:
        print(f"The environment for the tests cannot be set up:\n{error}", file=sys.stderr)
        return 2
    if options.only:
        steps = [step for step in steps if any(text in step.name for text in options.only)]
    if options.list or not steps:
        print("\n".join(step.name for step in steps) or "no step has such a name; --list prints the names")
        return 0 if steps else 2
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"The logs cannot be written: {error}", file=sys.stderr)
        return 2
    outcomes = run_all(steps, options.jobs)
    failed = [name for name, outcome in outcomes.items() if outcome.failed]
    if failed:
        print(f"failed: {', '.join(failed)}; full logs in {LOGS.relative_to(ROOT)}/")
    print(closing_line(outcomes, time.monotonic() - start))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
