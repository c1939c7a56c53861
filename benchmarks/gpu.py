"""Treadle, torch.compile and eager on a GPU: memory-bound kernels, products, launches, the twelve models.

    python benchmarks/gpu.py --output gpu.json                         everything that fits 240 seconds
    python benchmarks/gpu.py --parts kernels --seconds 500             one part
    python benchmarks/gpu.py --parts inference training --models bert resnet18 --variants eager treadle torch.compile max-autotune
    python benchmarks/gpu.py --list                                    the cases

Cases run in processes of their own, a few cases each, `--jobs` processes at a time. The processes of a batch compile at the
same time and then measure one after the other, so that nothing else runs on the device and the cores meanwhile. Every figure
is written to the JSON as it comes, failures and what did not fit `--seconds` included.

seconds    median; `how` says of what: "device": work on the device, calls queued up and inputs rotated so that the cache does not
           hold them ("64 MB") or the same input again and again ("in cache"); "wall": one call from an idle device until its
           results are there; "host": calls that follow each other without waiting
gbps       bytes that must move at least, over the seconds; `of_copy`: over the measured bandwidth of a copy of 64 MB
first      seconds of the first call. Cold: every process starts with empty caches of Inductor, Triton and Treadle. Warm: CUDA,
           the libraries' kernels (eager ran before). With `first_in_process` it includes the import of the compiler and the
           start of its processes, and for Treadle the build of its launcher; jobs compile beside each other (`jobs`)
difference largest |result - eager's| over the largest |eager's|
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import gpu_worker  # noqa: E402
import machine  # noqa: E402
from gpu_cases import Case  # noqa: E402

PARTS = ("launch", "matmul", "kernels", "inference", "training")
# No two cases of a process share a function: compilers would take the second for a change of sizes.
CASES_PER_PROCESS = {"launch": 2, "matmul": 7, "kernels": 6, "inference": 2, "training": 2}
MEASURING = 0.4  # share of the time left that a batch keeps for measuring


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", metavar="MODEL", help="by default all twelve")
    parser.add_argument("--only", metavar="TEXT", help="cases whose part/name/size/dtype holds this text")
    parser.add_argument("--batch", type=int, default=16, help="batch size of the models")
    default = ["eager", "treadle", "torch.compile"]
    parser.add_argument("--variants", nargs="+", choices=list(gpu_worker.VARIANTS), default=default)
    parser.add_argument("--seconds", type=float, default=240.0, help="what does not fit is listed as skipped")
    parser.add_argument("--jobs", type=int, default=4, help="processes that compile at the same time")
    parser.add_argument("--device", default="cuda", help='"cpu" tries the benchmark itself')
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.json")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    return parser.parse_args(arguments)


def cases_of(options: argparse.Namespace) -> list[Case]:
    """The chosen cases, those of each part in the order in which they run."""
    import gpu_kernels

    found = [*gpu_kernels.launches(), *gpu_kernels.products(), *gpu_kernels.memory_bound()]
    if {"inference", "training"} & set(options.parts):
        import gpu_models
        import zoo

        found += gpu_models.models(options.models or list(zoo.SCENARIOS), options.batch)
    return [case for case in found if case.part in options.parts and (options.only or "") in case.key]


def batches(cases: Sequence[Case]) -> list[list[str]]:
    """Keys of the cases of each process: neighbours of one part, an inference with its training."""
    groups: list[list[Case]] = []
    for case in cases:
        last = groups[-1] if groups else []
        if last and _kind(last[0]) == _kind(case) and len(last) < CASES_PER_PROCESS[case.part]:
            last.append(case)
        else:
            groups.append([case])
    return [[case.key for case in group] for group in groups]


def _kind(case: Case) -> str:
    """What the cases of one process have in common: the part, or the model."""
    return case.name if case.part in ("inference", "training") else case.part


def describe(device: str, arguments: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "command": " ".join(["python benchmarks/gpu.py", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor(),
        "cuda": torch.version.cuda,
        "what_is_cold": "caches of Inductor, Triton and Treadle are empty in every process; eager ran before",
        "tf32": False,
        **machine.describe(),
    }
    try:
        found["versions"]["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found["versions"]["triton"] = None
    return found


class Results:
    """The JSON file, written after every row."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self._path, self._head = path, head
        self.rows: list[dict[str, Any]] = []
        self.skipped: list[str] = []
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(gpu_worker.line_of(row), flush=True)
        self.write()

    def skip(self, keys: Sequence[str]) -> None:
        self.skipped += keys
        self.write()

    def write(self) -> None:
        content = {**self._head, "rows": self.rows, "skipped": self.skipped}
        arriving = self._path.with_suffix(".arriving")
        arriving.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        arriving.replace(self._path)


def run_all(groups: Sequence[list[str]], options: argparse.Namespace, deadline: float, results: Results) -> None:
    for start in range(0, len(groups), options.jobs):
        batch = groups[start : start + options.jobs]
        left = deadline - time.time()
        if left < 15:
            results.skip([key for group in batch for key in group])
            continue
        worker = {
            "variants": options.variants,
            "device": options.device,
            "models": options.models,
            "batch": options.batch,
            "compile_until": time.time() + left * (1 - MEASURING),
            "measure_until": deadline,
            "jobs": len(batch),
        }
        gpu_worker.run_batch([{**worker, "keys": group} for group in batch], deadline, results.add, results.skip)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    begin = time.time()
    groups = batches(cases_of(options))
    if options.list:
        print("\n".join(key for group in groups for key in group))
        return 0
    results = Results(options.output, describe(options.device, arguments))
    run_all(groups, options, begin + options.seconds, results)
    failed = [row for row in results.rows if row.get("error")]
    print(f"{len(results.rows)} rows, {len(failed)} failed, {len(results.skipped)} skipped: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
