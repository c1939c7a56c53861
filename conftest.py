"""For the tests of all packages."""

from __future__ import annotations

import gc
import sys

import pytest

_modules = 0


@pytest.fixture(autouse=True)
def imported_is_settled() -> None:
    """What modules have made is in no collection of the tests behind: beside torch and transformers a full one takes half a second."""
    global _modules
    if len(sys.modules) != _modules:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)
