"""Committed results say nothing of the machine that they come from but its kind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
# A directory of a user, of a checkout, of an interpreter or of temporary files. `/` alone is a division.
PLACES = re.compile(r"(?<![\w.)\]])/(?:home|root|Users|tmp|work|opt|mnt|data|usr)/\w")


@pytest.mark.parametrize(
    "path", sorted(p for p in RESULTS.iterdir() if p.suffix in (".json", ".md", ".svg")), ids=lambda p: p.name
)
def test_results_hold_no_path_of_a_machine(path):
    found = [match.string[match.start() :][:80] for match in PLACES.finditer(path.read_text(encoding="utf-8"))]
    assert not found


def test_a_path_is_found():
    assert (
        PLACES.search(f'File "{os.sep}work/somewhere/x.py"')
        and PLACES.search(f" {os.sep}home/me")
        and not PLACES.search("a/b, 1/work")
    )
