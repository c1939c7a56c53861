"""Fifteen functions as bytecode, guards, graph and replacement bytecode, compared with the files in tests/golden.

`python -m pytest packages/treadle-tracer/tests/test_golden.py --update-golden` writes the files anew.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from golden_subjects import SUBJECTS
from golden_text import GOLDEN, check_golden, compile_text


@pytest.mark.parametrize("name", SUBJECTS)
def test_golden(name, request):
    text = compile_text(SUBJECTS[name])
    here = "|".join(re.escape(str(path)) for path in (Path.home(), Path(__file__).parents[3], tempfile.gettempdir()))
    assert re.search(rf"0x[0-9a-f]{{4}}|{here}", text) is None  # the same text on every machine
    check_golden(name, text, request.config.getoption("--update-golden", default=False))


def test_every_golden_file_has_a_subject():
    assert {path.name.partition(".")[0] for path in GOLDEN.glob("*.txt")} == set(SUBJECTS)
