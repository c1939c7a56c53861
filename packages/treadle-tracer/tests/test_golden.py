"""Fifteen functions as bytecode, guards, graph and replacement bytecode, compared with the files in tests/golden.

`python -m pytest packages/treadle-tracer/tests/test_golden.py --update-golden` writes the files anew.
"""

from __future__ import annotations

import re

import pytest
from golden_subjects import SUBJECTS
from golden_text import GOLDEN, check_golden, compile_text


@pytest.mark.parametrize("name", SUBJECTS)
def test_golden(name, request):
    text = compile_text(SUBJECTS[name])
    assert re.search(r"0x[0-9a-f]{4}|/home/|/work/|/tmp/", text) is None
    check_golden(name, text, request.config.getoption("--update-golden", default=False))


def test_every_golden_file_has_a_subject():
    assert {path.name.partition(".")[0] for path in GOLDEN.glob("*.txt")} == set(SUBJECTS)
