"""The twelve models as cases of `benchmarks/gpu.py`: one inference, and one training step with backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import zoo
from gpu_cases import Case, Work
from kernel_cases import DTYPES


def _inference(name: str, batch: int, dtype: torch.dtype) -> Callable[[torch.device], Work]:
    def build(device: torch.device) -> Work:
        scenario = zoo.SCENARIOS[name]
        inputs = zoo.moved(scenario.inputs(batch), device, dtype)
        return Work(scenario.build().to(device, dtype), [(inputs,)], run=lambda run, given: run(**given[0]))

    return build


def _training(name: str, batch: int, dtype: torch.dtype) -> Callable[[torch.device], Work]:
    def build(device: torch.device) -> Work:
        scenario = zoo.SCENARIOS[name]
        inputs = zoo.moved(scenario.inputs(batch), device, dtype)
        model = scenario.build().to(device, dtype).train()

        def step(run: Callable[..., Any], given: tuple[Any, ...]) -> torch.Tensor:
            for parameter in model.parameters():
                parameter.grad = None
            output = next(t for t in zoo.tensors_of(run(**given[0])) if t.is_floating_point())
            loss = output.float().square().mean()
            loss.backward()
            return loss

        return Work(model, [(inputs,)], run=step)

    return build


def models(names: Sequence[str], batch: int) -> Iterator[Case]:
    """Cases in the order in which they are worth most."""
    for dtype in DTYPES:
        for name in names:
            size = f"batch {batch}"
            yield Case("inference", name, size, dtype, _inference(name, batch, DTYPES[dtype]), how="wall")
            yield Case("training", name, size, dtype, _training(name, batch, DTYPES[dtype]), how="wall", with_grad=True)
