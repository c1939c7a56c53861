"""Random programs of pointwise operations, reductions, views and concatenations, for tests against an oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_UNARY = [
    torch.relu,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.neg,
    torch.abs,
    torch.sin,
    torch.erf,
    F.gelu,
    F.silu,
    torch.floor,
]
_BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2]
_REDUCE = [
    lambda x, d, k: x.sum(d, keepdim=k),
    lambda x, d, k: x.mean(d, keepdim=k),
    lambda x, d, k: x.amax(d, keepdim=k),
    lambda x, d, k: x.var(d, keepdim=k, correction=0),
]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[Any]]:
    """Shapes of two inputs and a list of steps; a step names its operation and how it picks operands."""
    dims = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17]), min_size=1, max_size=3))
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["unary", "binary", "reduce", "softmax", "norm", "view", "transpose", "cat", "slice"]),
                st.integers(0, 30),
                st.integers(0, 30),
                st.integers(0, 30),
            ),
            min_size=1,
            max_size=9,
        )
    )
    return [tuple(dims), tuple(1 if draw(st.booleans()) else n for n in dims)], steps


def run_program(steps: list[Any], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values = list(inputs)
    for kind, a, b, c in steps:
        x, y = values[a % len(values)], values[b % len(values)]
        dim = c % max(x.dim(), 1)
        if kind == "unary":
            values.append(_UNARY[b % len(_UNARY)](x.clamp(-5, 5)))
        elif kind == "binary":
            try:
                torch.broadcast_shapes(x.shape, y.shape)
            except RuntimeError:
                y = x
            values.append(_BINARY[c % len(_BINARY)](x, y))
        elif x.dim() == 0:
            continue
        elif kind == "reduce":
            values.append(_REDUCE[b % len(_REDUCE)](x, dim, bool(a % 2)))
        elif kind == "softmax":
            values.append(torch.softmax(x, dim))
        elif kind == "norm":
            values.append(F.layer_norm(x, x.shape[-1:]))
        elif kind == "view":
            values.append(x.reshape(-1, x.shape[-1]))
        elif kind == "transpose":
            values.append(x.transpose(dim, -1))
        elif kind == "cat":
            values.append(torch.cat([x, x * 2], dim))
        else:
            values.append(x.narrow(dim, x.shape[dim] // 2, x.shape[dim] - x.shape[dim] // 2))
    return tuple(values[len(inputs) :][-4:])


def check_programs(
    batch: int, examples: int, compile_: Callable[[Callable[..., Any]], Callable[..., Any]], device: str | torch.device
) -> None:
    """Draw programs, always the same ones for one `batch`, and compare what `compile_` makes of each with its float64 results."""

    @seed(batch)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(programs())
    def run(drawn: tuple[list[tuple[int, ...]], list[Any]]) -> None:
        shapes, steps = drawn
        inputs = [torch.randn(shape, device=device) for shape in shapes]
        expected = run_program(steps, *[x.double() for x in inputs])
        actual = compile_(lambda *xs: run_program(steps, *xs))(*inputs)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3, equal_nan=True)

    run()
