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
