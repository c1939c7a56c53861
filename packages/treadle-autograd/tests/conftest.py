"""Every test draws the same random tensors, alone or with others; TREADLE_TEST_SEED draws other ones."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(int(os.environ.get("TREADLE_TEST_SEED", "0")))
