"""The README's programs run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python( torch)?\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_block_runs(index, tmp_path):
    needs_torch, source = BLOCKS[index]
    if needs_torch:
        pytest.importorskip("torch")
    exec(compile(source, f"README.md block {index}", "exec"), {"__name__": "readme"})


def test_there_are_programs():
    assert len(BLOCKS) == 5
