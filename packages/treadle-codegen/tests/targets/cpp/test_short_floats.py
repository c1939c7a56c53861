"""bfloat16 numbers that are stored without rounding have the bits that eager gives them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle_codegen import compile_graph

EXACT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "relu": lambda x, y: F.relu(x),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, -y),
    "copysign": lambda x, y: torch.copysign(x, y),
    "where": lambda x, y: torch.where(x > y, x, -y),
    "clamp": lambda x, y: x.clamp(-1.5, 0.25),
    "masked_fill": lambda x, y: x.masked_fill(x > y, -1.0),
    "pad": lambda x, y: F.pad(-x, (3, 2)),
    "tril": lambda x, y: x.view(16, -1).tril(),
    "roll": lambda x, y: x.abs().roll(3),
    "chosen": lambda x, y: torch.where(x == 0, torch.full_like(x, float("nan")), x),
}


def source_of(fn: Callable[..., torch.Tensor], *inputs: torch.Tensor, zeros_alike: bool = False) -> str:
    """The source of the compiled function, which has been found to agree with eager to the last bit, whatever kind of NaN.

    zeros_alike: 0 and -0 agree, too: the maximum of both is either.
    """
    compiled = compile_graph(capture(fn, list(inputs)), list(inputs))
    (found,), expected = compiled(*inputs), fn(*inputs)
    assert found.dtype == expected.dtype and torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found == 0, expected == 0)
    chosen = ~expected.isnan() & ((expected != 0) | (not zeros_alike))
    assert torch.equal(found[chosen].view(torch.int16), expected[chosen].view(torch.int16))
    return compiled.source


def everything() -> torch.Tensor:
    """All numbers of bfloat16, infinite ones and NaN among them."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("name", EXACT)
def test_all_numbers_keep_their_bits(name: str) -> None:
    x = everything()
    source = source_of(EXACT[name], x, x.flip(0).roll(77))
    assert "cut_bf16(v" in source and "to_bf16(v" not in source


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x * 1.1,
        lambda x, y: torch.maximum(x, y * 0.3),
        lambda x, y: x.clamp(-1 / 3, 1 / 3),
        lambda x, y: torch.where(x > 0, x, 1 / 3),
        lambda x, y: F.leaky_relu(x, 0.1),
    ],
)
def test_other_numbers_are_rounded(fn: Callable[..., torch.Tensor]) -> None:
    x = everything()[::7].contiguous()
    assert "to_bf16(v" in source_of(fn, x, x.flip(0).contiguous())


@given(
    names=st.lists(
        st.sampled_from(["neg", "abs", "relu", "maximum", "minimum", "copysign", "where"]), min_size=1, max_size=5
    )
)
@settings(max_examples=20, deadline=None)
def test_chains(names: list[str]) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = EXACT[name](x, y)
        return x

    x = everything()[::5].contiguous()
    source_of(fn, x, x.flip(0).contiguous(), zeros_alike=True)
