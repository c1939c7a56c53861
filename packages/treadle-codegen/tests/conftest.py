"""Every test and every module draws the same random tensors, alone or with others, and every pass's verifier runs.

TREADLE_TEST_SEED draws other tensors. `--update-golden` writes the golden files anew instead of comparing (tests/golden).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os

import pytest
import torch

from treadle_codegen import CodegenOptions


def _verify_by_default() -> None:
    """Options that say nothing about `verify` turn it on, those of hypothesis' examples and of whole modules included."""
    given = {f.name: f.default for f in dataclasses.fields(CodegenOptions)}
    names = [f.name for f in dataclasses.fields(CodegenOptions)]
    defaults = CodegenOptions.__init__.__defaults__
    assert defaults is not None and given["verify"] is False
    at = names.index("verify") - len(names)
    CodegenOptions.__init__.__defaults__ = (*defaults[:at], True, *defaults[at + 1 :])


_verify_by_default()


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # another package's tests in the same process added it
        parser.addoption(
            "--update-golden", action="store_true", help="write the golden files anew instead of comparing"
        )


def _seed() -> None:
    torch.manual_seed(int(os.environ.get("TREADLE_TEST_SEED", "0")))


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Tensors of whole modules are drawn while the module is collected, before any fixture."""
    if isinstance(collector, pytest.Module):
        _seed()


@pytest.fixture(autouse=True)
def seed() -> None:
    _seed()
