"""docs/contracts.md names every root, accessor and check op of guard programs, and no other op."""

from __future__ import annotations

import re
from pathlib import Path

from treadle_frame.guards import ACCESSORS, OPS, ROOTS

SECTION = re.search(
    r"^## 1\..*?(?=^## 2\.)", (Path(__file__).parents[1] / "docs" / "contracts.md").read_text(), re.M | re.S
)
assert SECTION is not None


def test_the_page_names_every_step_of_a_path():
    assert [name for name in (*ROOTS, *ACCESSORS) if f'("{name}"' not in SECTION[0]] == []


def test_the_page_lists_the_check_ops():
    rows = re.findall(r"^\| (`[^|]*`) \|", SECTION[0], re.M)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(OPS)
