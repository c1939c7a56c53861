"""PyTorch's own records of operators and their samples (`op_db`), for tests of all of them."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    common = pytest.importorskip("torch.testing._internal.common_methods_invocations")

from torch.testing._internal import common_utils  # noqa: E402
from torch.testing._internal.opinfo import core  # noqa: E402

# Every list of samples searches the stack three times for a method of unittest, by whose name it would draw them: 10 ms each.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

op_db = common.op_db
