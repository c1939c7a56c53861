"""Writes where a mask is true are loops without positions, and right for every dtype, place of the mask and form of the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen import compile_graph
from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Loop
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape).to(dtype)


def compare(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[object]:
    """What the function lowers to, after the interpreter and the kernels have given what eager gives."""
    graph = capture(function, tensors)
    program = lower_graph(graph, tensors)
    assert verify(program) == []
    expected = function(*tensors)
    for (found,) in (interpret(program, tensors), compile_graph(graph, tensors)(*tensors)):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    return list(program.steps)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
@pytest.mark.parametrize("accumulate", [False, True])
def test_every_dtype(dtype: torch.dtype, accumulate: bool) -> None:
    x, value = made(dtype, 6, 5), made(dtype)
    mask = torch.rand(6, 5) > 0.4
    steps = compare(lambda x, m, v: aten.index_put(x, [m], v, accumulate), x, mask, value)
    assert all(isinstance(step, Loop) for step in steps) is not (accumulate and dtype == torch.bool)


@given(
    lead=st.lists(st.integers(0, 3), max_size=2),
    masked=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    rest=st.lists(st.integers(0, 3), max_size=2),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_masks_anywhere_and_values_of_any_form(
    lead: list[int], masked: list[int], rest: list[int], data: st.DataObject
) -> None:
    shape = [data.draw(st.sampled_from([n, 1])) for n in (*lead, 1, *rest)]
    values = made(torch.float32, *shape[data.draw(st.integers(0, len(shape))) :])
    x, mask = made(torch.float32, *lead, *masked, *rest), torch.rand(*masked) > 0.5
    accumulate, behind = data.draw(st.booleans()), data.draw(st.integers(0, len(rest)))
    indices = [*[None] * len(lead), mask, *[None] * behind]

    def function(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return aten.index_put(x, [mask if i is not None else None for i in indices], values, accumulate)

    assert all(isinstance(step, Loop) for step in compare(function, x, mask, values))


def test_values_of_their_own_for_masked_positions_are_atens() -> None:
    x, mask = made(torch.float32, 4, 3), torch.tensor([True, False, True, False])
    steps = compare(lambda x, m, v: aten.index_put(x, [m], v), x, mask, made(torch.float32, 2, 3))
    assert not any(isinstance(step, Loop) for step in steps)


def test_nan_is_written_and_kept() -> None:
    x, nan = torch.tensor([1.0, float("nan"), 3.0]), torch.tensor(float("nan"))
    found = compile_graph(graph := capture(lambda x, m, v: aten.index_put(x, [m], v), (x, x > 2, nan)), (x, x > 2, nan))
    assert graph is not None
    torch.testing.assert_close(found(x, x > 2, nan)[0], torch.tensor([1.0, *2 * [float("nan")]]), equal_nan=True)


def test_sizes_that_do_not_fit_raise_what_eager_raises() -> None:
    x, mask = torch.zeros(4), torch.tensor([True, False, True, False])
    graph = capture(lambda x, m, v: aten.index_put(x, [m], v), (x, mask, torch.zeros(2)))
    compiled = compile_graph(graph, (x, mask, torch.zeros(2)))
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, torch.tensor([True, True, True, False]), torch.zeros(2))
