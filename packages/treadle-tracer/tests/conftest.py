"""Every test draws the same random tensors, alone or with others; TREADLE_TEST_SEED draws other ones."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(autouse=True)
def seed() -> None:
    torch = sys.modules.get("torch")  # some of the tests run where there is none
    if torch is not None:
        torch.manual_seed(int(os.environ.get("TREADLE_TEST_SEED", "0")))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden`; a package whose tests run in the same process may have added it already."""
    try:
        parser.addoption(
            "--update-golden", action="store_true", help="write the golden files anew instead of comparing"
        )
    except ValueError:
        pass
