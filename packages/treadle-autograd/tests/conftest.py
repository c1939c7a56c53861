"""Every test draws the same random tensors, alone or with others; TREADLE_TEST_SEED draws other ones."""

from __future__ import annotations

import gc
import os
import sys

import pytest
import torch

_modules = 0


@pytest.fixture(autouse=True)
def imported_is_settled() -> None:
    """What modules have made is in no collection of the tests behind: beside torch and transformers a full one takes half a second."""
    global _modules
    if len(sys.modules) != _modules:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(int(os.environ.get("TREADLE_TEST_SEED", "0")))
