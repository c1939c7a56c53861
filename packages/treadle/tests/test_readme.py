"""The README's programs run."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_readme_block(index: int) -> None:
    name = f"README.md block {index}"
    linecache.cache[name] = (len(BLOCKS[index]), None, BLOCKS[index].splitlines(keepends=True), name)
    exec(compile(BLOCKS[index], name, "exec"), {"__name__": "readme"})
