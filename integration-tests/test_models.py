"""The twelve models of the main job: one graph each, no breaks, and an error against float64 of at most ten times eager's."""

from __future__ import annotations

import copy

import pytest
import torch

import treadle
import zoo

# Below this share of the largest reference value an error is rounding of the last operation.
FLOOR = 1e-6


def error_against(reference: list[torch.Tensor], results: list[torch.Tensor]) -> float:
    """Largest deviation of any element, relative to the largest element of its tensor."""
    worst = 0.0
    for exact, result in zip(reference, results, strict=True):
        assert exact.shape == result.shape
        scale = exact.abs().max().item() or 1.0
        worst = max(worst, (result.double() - exact).abs().max().item() / scale)
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("name", list(zoo.SCENARIOS))
def test_model(name):
    scenario = zoo.SCENARIOS[name]
    model = scenario.build()
    inputs = scenario.inputs(batch=2)
    with torch.no_grad():
        eager = zoo.tensors_of(model(**inputs))
        reference = zoo.tensors_of(copy.deepcopy(model).double()(**zoo.in_float64(inputs)))
        compiled = treadle.compile(model)
        first = zoo.tensors_of(compiled(**inputs))
        stats = treadle.stats()
        second = zoo.tensors_of(compiled(**inputs))
    assert stats.graphs == 1
    assert stats.breaks == () and stats.eager_graphs == () and stats.recompiles == ()
    assert treadle.stats().graphs == 1
    allowed = 10 * error_against(reference, eager) + FLOOR
    assert error_against(reference, first) <= allowed
    assert error_against(reference, second) <= allowed
    assert [t.stride() for t in first] == [t.stride() for t in eager]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "resnet18"])
def test_another_batch_size_recompiles_once_to_a_dynamic_graph(name):
    scenario = zoo.SCENARIOS[name]
    model = scenario.build()
    compiled = treadle.compile(model)
    with torch.no_grad():
        for batch in (2, 3, 5, 4):
            inputs = scenario.inputs(batch=batch)
            torch.testing.assert_close(
                zoo.tensors_of(compiled(**inputs)), zoo.tensors_of(model(**inputs)), rtol=1e-3, atol=1e-4
            )
    assert treadle.stats().graphs == 2
    assert len(treadle.stats().recompiles) == 1
