"""All tests run with internal errors raised, and small functions and first calls compiled, unless they say otherwise, and from a clean
state, on the same random tensors (TREADLE_TEST_SEED draws other ones)."""

from __future__ import annotations

import os

import pytest
import torch

import treadle

os.environ["TREADLE_LEAVE_UNPROFITABLE"] = os.environ["TREADLE_SETUP_IN_EAGER"] = "0"  # for child processes


@pytest.fixture(autouse=True)
def _clean_state():
    torch.manual_seed(int(os.environ.get("TREADLE_TEST_SEED", "0")))
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False, setup_in_eager=False):
        treadle.reset()
        yield
        treadle.reset()
