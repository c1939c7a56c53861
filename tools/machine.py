"""A description of the machine that a benchmark ran on: processor, versions, commit, day."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = ("torch", "transformers", "timm", "sympy")


def processor() -> str:
    """The processor's name, or the architecture if Linux does not tell it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.machine()


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def first_line(*command: str) -> str | None:
    """The first line that a command prints, or None if it cannot be run or fails."""
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return run.stdout.splitlines()[0] if run.returncode == 0 and run.stdout else None


def describe() -> dict[str, object]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "compiler": first_line("g++", "--version"),
        "versions": {name: version_of(name) for name in DISTRIBUTIONS},
        "commit": first_line("git", "rev-parse", "--short", "HEAD"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
