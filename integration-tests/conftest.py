"""Whole-stack tests: internal errors are raised, small functions and first calls are compiled too, kernels use one thread, the kernel
cache is the session's own, and random tensors are the same in every run (TREADLE_TEST_SEED draws other ones)."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory):
    """A fresh kernel cache for the session, handed to child processes by the environment."""
    directory = tmp_path_factory.mktemp("kernels")
    before = os.environ.get("TREADLE_CACHE_DIR")
    os.environ["TREADLE_CACHE_DIR"] = str(directory)
    yield directory
    if before is None:
        del os.environ["TREADLE_CACHE_DIR"]
    else:
        os.environ["TREADLE_CACHE_DIR"] = before


os.environ["TREADLE_LEAVE_UNPROFITABLE"] = os.environ["TREADLE_SETUP_IN_EAGER"] = "0"  # for child processes


@pytest.fixture(autouse=True)
def _clean_state():
    import torch

    import treadle

    torch.manual_seed(int(os.environ.get("TREADLE_TEST_SEED", "0")))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False, setup_in_eager=False):
        treadle.reset()
        yield
        treadle.reset()
    torch.set_num_threads(threads)
