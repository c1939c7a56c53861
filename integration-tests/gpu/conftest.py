"""Whole-stack tests on a GPU; all are skipped where torch finds none.

Environment variables, which `tools/gpu_check.py` sets:

    TREADLE_TEST_DEVICE   where the tests run (default "cuda"). "cpu" tries the tests themselves without a GPU; those that are about
                          CUDA itself are skipped.
    TREADLE_SHARD         "3/12": only every twelfth test, from the third on (counted from 0), so that processes share the tests
    TREADLE_STOP_AT       seconds since the epoch; tests that would start later are skipped
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treadle

DEVICE = os.environ.get("TREADLE_TEST_DEVICE", "cuda")
_TYPE = torch.device(DEVICE).type


def why_no_device() -> str | None:
    """Why tests cannot run on DEVICE, or None."""
    return "needs a GPU" if _TYPE == "cuda" and not torch.cuda.is_available() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)
    ours = [item for item in items if str(item.path).startswith(here)]
    shard, of = map(int, os.environ.get("TREADLE_SHARD", "0/1").split("/"))
    elsewhere = {id(item) for k, item in enumerate(ours) if k % of != shard}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in elsewhere])
    items[:] = [item for item in items if id(item) not in elsewhere]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not str(item.path).startswith(os.path.dirname(__file__)):
        return
    if reason := why_no_device():
        pytest.skip(reason)
    if item.get_closest_marker("only_cuda") and _TYPE != "cuda":
        pytest.skip("is about CUDA itself")
    if time.time() > float(os.environ.get("TREADLE_STOP_AT", "inf")):
        pytest.skip("out of time")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_cuda: is about CUDA itself, not about what a graph computes")


@pytest.fixture
def device() -> torch.device:
    """Where the test's tensors lie."""
    return torch.device(DEVICE)


@pytest.fixture(autouse=True)
def exact_matmuls():
    """Float32 products in float32: results are compared with a float64 reference."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def check() -> Callable[..., Any]:
    """`check(function, *inputs)`: three calls of the compiled function give eager's results and compile one graph without breaks.

    `rtol` and `atol` are those of `torch.testing.assert_close`, whose own are taken by default. `graphs`: how many graphs may be
    compiled, None for any number, breaks included. Returns the compiled function.
    """
    return _check


def _check(
    function: Callable[..., Any],
    *inputs: Any,
    rtol: float | None = None,
    atol: float | None = None,
    graphs: int | None = 1,
    mode: str = "default",
) -> Callable[..., Any]:
    before = treadle.stats()
    compiled = treadle.compile(function, mode=mode)
    expected = function(*inputs)
    for _ in range(3):
        torch.testing.assert_close(compiled(*inputs), expected, rtol=rtol, atol=atol, equal_nan=True)
    after = treadle.stats()
    if graphs is not None:
        assert not after.eager_graphs, after.eager_graphs
        assert after.graphs - before.graphs <= graphs and len(after.breaks) == len(before.breaks), after
    return compiled
