"""Random programs through the whole stack, as Triton kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from random_programs import programs, run_program

import treadle

BATCHES, EXAMPLES = 4, 6


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("dynamic", [False, True])
def test_random_programs(batch: int, dynamic: bool) -> None:
    @seed(batch)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(programs())
    def run(drawn: tuple[list[tuple[int, ...]], list[object]]) -> None:
        shapes, steps = drawn
        treadle.reset()
        inputs = [torch.randn(shape) for shape in shapes]
        expected = run_program(steps, *[x.double() for x in inputs])
        actual = treadle.compile(lambda *xs: run_program(steps, *xs), dynamic=dynamic)(*inputs)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3, equal_nan=True)

    run()


def test_these_tests_run_triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle_codegen.targets.triton import interpreter

    seen: list[str] = []
    load = interpreter.load_unit
    monkeypatch.setattr(
        interpreter, "load_unit", lambda source, *a, **k: (seen.append(source), load(source, *a, **k))[1]
    )
    torch.testing.assert_close(treadle.compile(torch.relu)(torch.randn(9)).min().clamp(max=0), torch.tensor(0.0))
    assert any("@triton.jit\ndef k_" in source for source in seen)
