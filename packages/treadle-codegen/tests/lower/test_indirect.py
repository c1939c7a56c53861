"""Gathers from tensors that are not stored: values, checks of positions, and when the tensor is stored after all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.ir.loops import Loop
from treadle_codegen.lower import lower_graph

Function = Callable[..., torch.Tensor]
X, POSITIONS = torch.randn(8, 50), torch.randint(0, 50, (8, 1))


def compiled(function: Function, *inputs: Any) -> torch.Tensor:
    return compile_graph(capture(function, list(inputs)), list(inputs), options=CodegenOptions(verify=True))(*inputs)[0]


def buffers_of_size(function: Function, elements: int, *inputs: torch.Tensor) -> int:
    """How many buffers of so many elements the program's loops write."""
    program = lower_graph(capture(function, list(inputs)))
    written = {i.attr.buffer for s in program.steps if isinstance(s, Loop) for i in s.body if i.op == "store"}
    return sum(torch.Size(program.buffers[name].shape).numel() == elements for name in written)


COMPUTED: dict[str, Function] = {
    "scaled": lambda x, t: (x * 2 + 1).gather(1, t),
    "negative log likelihood": lambda x, t: -torch.log_softmax(x, 1).gather(1, t),
    "transposed": lambda x, t: (x * 2).t().gather(0, t.t()),
    "reshaped": lambda x, t: (x.view(4, 100) * 2).gather(1, t.view(4, 2)),
    "flipped": lambda x, t: (x.flip(1) * 2).gather(1, t),
    "part": lambda x, t: (x[:, 10:40] * 2).gather(1, t.clamp(max=29)),
    "broadcast": lambda x, t: (x + x[0]).gather(1, t),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_elements_are_computed_at_their_positions(name: str) -> None:
    function = COMPUTED[name]
    torch.testing.assert_close(compiled(function, X, POSITIONS), function(X, POSITIONS))
    assert buffers_of_size(function, X.numel(), X, POSITIONS) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", COMPUTED)
def test_elements_of_16_bits(name: str, dtype: torch.dtype) -> None:
    function, x = COMPUTED[name], X.to(dtype)
    exact, unit = function(x.double(), POSITIONS), torch.finfo(dtype).eps
    found = compiled(function, x, POSITIONS)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=2 * unit, atol=2 * unit)
    assert buffers_of_size(function, X.numel(), x, POSITIONS) == 0


@pytest.mark.parametrize("position", [50, -1, 10**6])
@pytest.mark.parametrize("name", [name for name in COMPUTED if name not in ("part", "reshaped")])
def test_positions_are_checked(name: str, position: int) -> None:
    wrong = POSITIONS.clone()
    wrong[3] = position
    with pytest.raises(IndexError):
        compiled(COMPUTED[name], X, wrong)


def test_a_part_is_checked_against_its_own_size() -> None:
    with pytest.raises(IndexError):
        compiled(lambda x, t: (x[:, 10:40] * 2).gather(1, t), X, torch.full((8, 1), 35))


@pytest.mark.parametrize("position", [3, 50, -1])
def test_positions_in_what_is_the_same_everywhere_are_checked(position: int) -> None:
    function: Function = lambda x, t: (x[:, :1] * 2).expand(8, 50).gather(1, t)  # noqa: E731
    positions = torch.full((8, 1), position)
    if position == 3:
        torch.testing.assert_close(compiled(function, X, positions), function(X, positions))
        return
    with pytest.raises(IndexError):
        compiled(function, X, positions)


def test_what_is_read_in_full_is_stored() -> None:
    everywhere = torch.randint(0, 50, (8, 50))
    function: Function = lambda x, t: (x * 2 + 1).gather(1, t)  # noqa: E731
    torch.testing.assert_close(compiled(function, X, everywhere), function(X, everywhere))
    assert buffers_of_size(function, X.numel(), X, everywhere) == 2  # and the result
