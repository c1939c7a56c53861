"""All tests run with internal errors raised, unless they say otherwise, and from a clean state."""

from __future__ import annotations

import pytest

import treadle


@pytest.fixture(autouse=True)
def _clean_state():
    with treadle.config.patch(raise_internal_errors=True):
        treadle.reset()
        yield
        treadle.reset()
