"""Everything that needs a GPU, in one command: the GPU tests, then the benchmarks, within a given time, to JSON.

    python tools/gpu_check.py --out DIRECTORY                                      480 seconds: half for tests, the rest for benchmarks
    python tools/gpu_check.py --out DIRECTORY --tests-only --seconds 300
    python tools/gpu_check.py --out DIRECTORY --benchmarks-only -- --parts kernels matmul --variants eager treadle
    python tools/gpu_check.py --out DIRECTORY --tests integration-tests/gpu/test_zoo.py -k "resnet18 and inference"

It works from a checkout, with nothing installed but torch, Triton, pytest and what the tests import: it puts the packages' sources on
PYTHONPATH and builds treadle-frame's extension for the running Python where it is missing. Arguments behind `--` go to
`benchmarks/gpu.py`. DIRECTORY gets `tests.json` (counts, each failure with its message), `benchmarks.json`, `check.json` (device, date,
versions, what ran how long) and `tests.log`. Exit status: 0 if all tests passed, 1 if some failed, 2 if nothing could be run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FRAME = ROOT / "packages" / "treadle-frame"
NEEDED = ("torch", "triton", "pytest", "hypothesis", "sympy", "platformdirs")
OPTIONAL = ("transformers", "timm", "pytest_timeout")
SECONDS_PER_TEST = 150
MESSAGE_LENGTH = 3000


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the results go")
    parser.add_argument("--seconds", type=float, default=480.0, help="for everything")
    parser.add_argument("--tests-only", action="store_true")
    parser.add_argument("--benchmarks-only", action="store_true")
    parser.add_argument(
        "--tests", nargs="+", default=["integration-tests/gpu"], metavar="PATH", help="what pytest gets"
    )
    parser.add_argument("-k", dest="keyword", metavar="TEXT", help="tests that match, as pytest has it")
    parser.add_argument("--jobs", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)), help="test processes")
    parser.add_argument("--device", default="cuda", help='"cpu" tries the tests themselves')
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.benchmark_arguments = list(arguments[split + 1 :])
    return options


def why_not_ready() -> str | None:
    """What is missing on this machine, and what to do about it; None if nothing is."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"This Python ({sys.executable}) has no {', '.join(missing)}. Install them, or put the folder that holds them on "
            "PYTHONPATH (platformdirs is pure Python: `pip install --target DIRECTORY platformdirs`)."
        )
    return None


def environment(options: argparse.Namespace) -> dict[str, str]:
    """The packages' sources in front of what PYTHONPATH has."""
    sources = [str(path) for path in sorted((ROOT / "packages").glob("*/src"))]
    path = [*sources, str(ROOT / "tools"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
        "TREADLE_TEST_DEVICE": options.device,
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
    }


def build_extension(env: dict[str, str]) -> str | None:
    """Build treadle-frame's extension if this Python cannot import it; what went wrong, or None."""
    tried = [sys.executable, "-c", "import treadle_frame"]
    if subprocess.run(tried, env=env, capture_output=True).returncode == 0:
        return None
    build = subprocess.run([sys.executable, "hatch_build.py"], cwd=FRAME, env=env, capture_output=True, text=True)
    after = subprocess.run(tried, env=env, capture_output=True, text=True)
    return None if after.returncode == 0 else f"{build.stdout}{build.stderr}{after.stderr}"[-3000:]


# ------------------------------------------------------------------------------------------------ tests


def run_tests(options: argparse.Namespace, env: dict[str, str], seconds: float) -> dict[str, Any]:
    """Run the tests in processes that share them; their counts and failures."""
    begin = time.time()
    stop_at = begin + seconds
    with tempfile.TemporaryDirectory(prefix="treadle-gpu-tests-") as directory:
        running = [start_shard(k, options, env, stop_at, Path(directory)) for k in range(options.jobs)]
        for process, _, _ in running:
            wait_for(process, stop_at + 60)
        shards = [read_shard(k, *started) for k, started in enumerate(running)]
    results = {
        "seconds": round(time.time() - begin, 1),
        "counts": {},
        "processes": [{key: shard[key] for key in ("status", "counts", "seconds")} for shard in shards],
        "failures": [failure for shard in shards for failure in shard["failures"]],
        "skipped": sorted({reason for shard in shards for reason in shard["skipped"]}),
        "slowest": sorted((test for shard in shards for test in shard["tests"]), key=lambda test: -test[1])[:25],
    }
    for shard in shards:
        for name, count in shard["counts"].items():
            results["counts"][name] = results["counts"].get(name, 0) + count
    (options.out / "tests.log").write_text("\n".join(shard["log"] for shard in shards), encoding="utf-8")
    (options.out / "tests.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return results


def start_shard(
    number: int, options: argparse.Namespace, env: dict[str, str], stop_at: float, directory: Path
) -> tuple[subprocess.Popen[bytes], Path, Path]:
    report, log = directory / f"{number}.xml", directory / f"{number}.log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}"]
    command += ["-k", options.keyword] if options.keyword else []
    if importlib.util.find_spec("pytest_timeout") is not None:
        command += [f"--timeout={SECONDS_PER_TEST}"]
    own = {**env, "TREADLE_SHARD": f"{number}/{options.jobs}", "TREADLE_STOP_AT": str(stop_at)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options.tests], cwd=ROOT, env=own, stdout=output, stderr=output, start_new_session=True
        )
    return process, report, log


def wait_for(process: subprocess.Popen[bytes], until: float) -> None:
    """Wait for a process, and kill it and its children if it runs longer."""
    try:
        process.wait(max(until - time.time(), 1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read_shard(number: int, process: subprocess.Popen[bytes], report: Path, log: Path) -> dict[str, Any]:
    printed = log.read_text(errors="replace")
    shard: dict[str, Any] = {"status": process.returncode, "counts": {}, "seconds": 0.0, "log": printed}
    shard |= {"failures": [], "skipped": [], "tests": []}
    if not report.exists():  # it was killed, or it crashed: pytest writes the report at its end
        message = f"no report, exit status {process.returncode}: {printed[-MESSAGE_LENGTH:]}"
        return shard | {"counts": {"crashed": 1}, "failures": [{"test": f"process {number}", "message": message}]}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        verdict = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        shard["counts"][verdict] = shard["counts"].get(verdict, 0) + 1
        shard["seconds"] += float(case.get("time", "0"))
        shard["tests"].append((name, round(float(case.get("time", "0")), 2)))
        for child in case:
            if child.tag in ("failure", "error"):
                message = f"{child.get('message', '')}\n{(child.text or '')[-MESSAGE_LENGTH:]}"
                shard["failures"].append({"test": name, "message": message[: 2 * MESSAGE_LENGTH]})
            elif child.tag == "skipped":
                shard["skipped"].append(f"{child.get('message')}")
    return shard


# ------------------------------------------------------------------------------------------------ benchmarks and the whole


def run_benchmarks(options: argparse.Namespace, env: dict[str, str], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "benchmarks/gpu.py", "--seconds", str(int(seconds)), "--device", options.device]
    command += ["--output", str(options.out / "benchmarks.json"), *options.benchmark_arguments]
    begin = time.time()
    process = subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True)
    wait_for(process, begin + seconds + 60)
    return {"command": command[1:], "status": process.returncode, "seconds": round(time.time() - begin, 1)}


def describe(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    sys.path.insert(0, str(ROOT / "tools"))
    import machine

    is_cuda = options.device.startswith("cuda")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(0) if is_cuda else options.device,
        "devices": torch.cuda.device_count(),
        "command": " ".join(sys.argv),
        "machine": machine.describe(),
        "without": [name for name in OPTIONAL if importlib.util.find_spec(name) is None],
    }


def print_tests(found: dict[str, Any]) -> None:
    for failure in found["failures"]:
        lines = [line for line in failure["message"].splitlines() if line.strip()]
        print(f"FAILED {failure['test']}: {' | '.join(lines[:2])[:300]}")
    counts = ", ".join(f"{count} {name}" for name, count in sorted(found["counts"].items()))
    print(f"tests: {counts} in {found['seconds']} s", flush=True)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    begin = time.time()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    if reason := why_not_ready():
        print(reason, file=sys.stderr)
        return 2
    env = environment(options)
    if reason := build_extension(env):
        print(f"treadle-frame's extension cannot be built for this Python:\n{reason}", file=sys.stderr)
        return 2
    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch finds no GPU (torch.cuda.is_available() is false)", file=sys.stderr)
        return 2
    check = describe(options)
    failed = False
    if not options.benchmarks_only:
        share = 1.0 if options.tests_only else 0.5
        found = run_tests(options, env, options.seconds * share - 20)
        print_tests(found)
        check["tests"] = {key: found[key] for key in ("seconds", "counts")}
        failed = bool(found["failures"])
    if not options.tests_only:
        left = options.seconds - (time.time() - begin) - 10
        check["benchmarks"] = run_benchmarks(options, env, left)
        failed |= check["benchmarks"]["status"] != 0
    check["seconds"] = round(time.time() - begin, 1)
    (options.out / "check.json").write_text(json.dumps(check, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
