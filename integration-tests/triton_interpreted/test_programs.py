"""Random programs through the whole stack, as Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_programs import check_programs

import treadle

BATCHES, EXAMPLES = 4, 6


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("dynamic", [False, True])
def test_random_programs(batch: int, dynamic: bool) -> None:
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        treadle.reset()
        return treadle.compile(function, dynamic=dynamic)

    check_programs(batch, EXAMPLES, compiled, "cpu")


def test_these_tests_run_triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle_codegen.targets.triton import interpreter

    seen: list[str] = []
    load = interpreter.load_unit
    monkeypatch.setattr(
        interpreter, "load_unit", lambda source, *a, **k: (seen.append(source), load(source, *a, **k))[1]
    )
    torch.testing.assert_close(treadle.compile(torch.relu)(torch.randn(9)).min().clamp(max=0), torch.tensor(0.0))
    assert any("@triton.jit\ndef k_" in source for source in seen)
