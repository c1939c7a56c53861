"""What the system says of the processor."""

from __future__ import annotations

from pathlib import Path


def processor_line(*fields: str) -> str | None:
    """The first line of /proc/cpuinfo that begins with one of `fields`; None where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line for line in lines if line.startswith(fields)), None)
