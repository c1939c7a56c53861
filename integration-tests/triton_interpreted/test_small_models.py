"""Small versions of the twelve models through the whole stack, as Triton kernels: inference, and gradients of some."""

from __future__ import annotations

import copy

import pytest
import torch

import treadle

zoo = pytest.importorskip("zoo")

from model_training import assert_as_near_as_eager, gradients  # noqa: E402
from small_models import MODELS, build  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str) -> None:
    model, inputs = build(name)
    with torch.no_grad():
        exact = zoo.tensors_of(copy.deepcopy(model).double()(**zoo.in_float64(inputs)))
        theirs = zoo.tensors_of(model(**inputs))
        mine = zoo.tensors_of(treadle.compile(model)(**inputs))
    assert not treadle.stats().eager_graphs and treadle.stats().graphs == 1
    assert_as_near_as_eager(mine, theirs, exact)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "t5", "convnext", "mixer"])
def test_gradients(name: str) -> None:
    model, inputs = build(name)
    exact_model, own_model = copy.deepcopy(model).double(), copy.deepcopy(model)
    exact = gradients(exact_model, exact_model, zoo.in_float64(inputs))
    theirs = gradients(model, model, inputs)
    mine = gradients(own_model, treadle.compile(own_model), inputs)
    assert not treadle.stats().eager_graphs
    assert_as_near_as_eager(mine, theirs, exact)
