"""Which programs are taken for linear, against values: f(a + b) = f(a) + f(b) for those, and most linear ones are found."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from treadle_autograd.linearity import is_linear

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LINEAR: dict[str, Program] = {
    "scaled": lambda g, x: g * x * 3 / (x.exp() + 1),
    "negated": lambda g, x: -g,
    "masked": lambda g, x: torch.where(x > 0, g, torch.zeros_like(g)),
    "masked by a number": lambda g, x: torch.where(x > 0, g, 0.0),
    "filled": lambda g, x: g.masked_fill(x > 0, 0),
    "written": lambda g, x: torch.zeros_like(g).index_put((torch.tensor([1, 2]),), g[:2]),
    "product": lambda g, x: x.t() @ g + g.sum(0),
    "both": lambda g, x: torch.cat([g, g.flip(0) - 2 * g]).mean(0),
    "padded": lambda g, x: torch.nn.functional.pad(g, (1, 2)).sum(1),
    "views": lambda g, x: g.t().reshape(-1)[1:].unsqueeze(0).expand(2, -1).clone(),
    "convolution": lambda g, x: torch.ops.aten.convolution_backward(
        g[None, None],
        x[None, None],
        x[None, None, :1, :1],
        None,
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, False],
    )[1],
    "of no gradient": lambda g, x: torch.zeros_like(g),
    "softmax": lambda g, x: torch.ops.aten._softmax_backward_data(g, x.softmax(1), 1, x.dtype),
}
OTHERS: dict[str, Program] = {
    "clamped": lambda g, x: g.clamp(-0.5, 0.5),
    "penalty": lambda g, x: g + x,
    "added number": lambda g, x: g + 1,
    "constant": lambda g, x: x * 2,
    "square": lambda g, x: g * g,
    "divisor": lambda g, x: x / (g + 10),
    "replaced": lambda g, x: torch.where(x > 0, g, x),
    "chosen by itself": lambda g, x: torch.where(g > 0, g, torch.zeros_like(g)),
    "filled": lambda g, x: g.masked_fill(x > 0, 1),
    "padded": lambda g, x: torch.nn.functional.pad(g, (1, 2), value=1.0),
    "normalised": lambda g, x: g / g.norm(),
    "rounded": lambda g, x: torch.div(g * 3, 0.7, rounding_mode="floor"),
    "integer": lambda g, x: (g * 3).to(torch.int64).to(g.dtype),
    "sign": lambda g, x: g.sign() * x,
    "product of both": lambda g, x: g @ (g + x).t(),
}


def found_linear(program: Program) -> bool:
    graph = make_fx(program)(*operands()[::2]).graph
    results = [node for node in graph.output_node().all_input_nodes]
    return is_linear(results, graph.find_nodes(op="placeholder")[:1])


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    first, second, x = torch.randn(3, 4, 4, dtype=torch.float64)
    return first, second, x


def is_additive(program: Program) -> bool:
    first, second, x = operands()
    return torch.allclose(program(first + second, x), program(first, x) + program(second, x))


@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    assert is_additive(LINEAR[name])
    assert found_linear(LINEAR[name])


@pytest.mark.parametrize("name", OTHERS)
def test_not_linear(name: str) -> None:
    assert not is_additive(OTHERS[name])
    assert not found_linear(OTHERS[name])
