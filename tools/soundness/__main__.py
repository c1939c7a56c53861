"""Run the fuzzer: `python -m soundness --help`."""

from __future__ import annotations

import argparse
import faulthandler
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

import torch

from soundness.minimise import minimise
from soundness.run import Case, make_case, program, run_case

CASES_PER_PROCESS = 40
SECONDS_PER_CASE = 90
EAGER_RUNS = 20
MEMORY = 4 * 2**30  # bytes


def compiler(seed: int, backend: str) -> Any:
    """How the world of a seed is compiled."""
    import treadle

    dynamic = (None, None, True, False)[seed % 4]

    def compile_function(function: Any) -> Any:
        treadle.reset()
        return treadle.compile(
            function,
            backend=backend,
            dynamic=dynamic,
            options={"raise_internal_errors": True, "leave_unprofitable": False, "setup_in_eager": seed // 4 % 2 == 1},
        )

    return compile_function


def run_seeds(seeds: range, backend: str) -> None:
    """Run cases in this process; one line of JSON per case. A case that hangs ends the process, and so does one that takes all memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    compiler(seeds.start, backend)  # what cases import takes longer than a case, on a machine with other work
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    for seed in seeds:
        faulthandler.dump_traceback_later(SECONDS_PER_CASE, exit=True)
        print(json.dumps({"start": seed}), flush=True)
        case = make_case(seed)
        compile_function = compiler(seed, backend)
        found = run_case(case, compile_function)
        line: dict[str, Any] = {"seed": seed, "steps": len(case.steps)}
        if found is not None and not differs_in_eager(case):
            faulthandler.dump_traceback_later(10 * SECONDS_PER_CASE, exit=True)
            smallest = minimise(case, partial(_fails_alike, found.what, compile_function))
            last = run_case(smallest, compile_function) or found
            line |= {"what": last.what, "detail": last.detail, "program": program(smallest)}
        print(json.dumps(line), flush=True)


def differs_in_eager(case: Case) -> bool:
    """Whether the case ends in different ways without a compiler: where a hash has changed, an address decides what a dict finds."""
    return any(run_case(case, lambda function: function) is not None for _ in range(EAGER_RUNS))


def _fails_alike(what: str, compile_function: Any, case: Case) -> bool:
    again = run_case(case, compile_function)
    return again is not None and again.what == what


def run_in_processes(first: int, steps: int, backend: str, timeout: float) -> list[dict[str, Any]]:
    """Run cases from seed `first` until `steps` steps are done. A process that crashes or hangs is a failure of its current seed."""
    failures: list[dict[str, Any]] = []
    done, seed, start = 0, first, time.monotonic()
    while done < steps:
        command = [sys.executable, "-X", "faulthandler", "-m", "soundness", "--worker", str(seed), "--backend", backend]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
            output, why = ran.stdout, f"exit status {ran.returncode}: {ran.stderr[-2000:]}" if ran.returncode else ""
        except subprocess.TimeoutExpired as hung:
            output, why = (hung.stdout or b"").decode(), f"no end after {timeout:.0f} s"
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        results = [line for line in lines if "seed" in line]
        done += sum(line["steps"] for line in results)
        found = [line for line in results if "what" in line]
        seed += CASES_PER_PROCESS
        if why:
            culprit = lines[-1]["start"] if lines and "start" in lines[-1] else seed - CASES_PER_PROCESS
            found.append({"seed": culprit, "what": "crash", "detail": why, "program": program(make_case(culprit))})
            seed = culprit + 1
        for failure in found:
            print(
                f"\n==== seed {failure['seed']}: {failure['what']}: {failure['detail']}\n{failure['program']}",
                flush=True,
            )
        failures += found
        print(f"{done} steps, {len(failures)} failures, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return failures


def main() -> int:
    """Print every failure, minimised. Exit status 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m soundness", description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="steps to run at least")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; a case is made of one seed")
    parser.add_argument("--backend", default="eager", help="the backend under Treadle's tracer")
    parser.add_argument("--timeout", type=float, default=600.0, help=f"seconds for {CASES_PER_PROCESS} cases")
    parser.add_argument("--one", action="store_true", help="run the case of --seed alone, in this process")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_seeds(range(given.seed, given.seed + 1), given.backend)
        return 0
    if given.worker is not None:
        run_seeds(range(given.worker, given.worker + CASES_PER_PROCESS), given.backend)
        return 0
    failures = run_in_processes(given.seed, given.steps, given.backend, given.timeout)
    print(dict(Counter(failure["what"] for failure in failures)) or "no mismatch")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
