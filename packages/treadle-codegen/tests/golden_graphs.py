"""The graphs of the golden files: a function with inputs each, small enough to be read in every stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from dynamic_cases import capture_dynamic
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_shape_env, fake_tensor, symbolic_dispatch

Graph = tuple[torch.fx.GraphModule, list[Any]]


def _static(
    function: Callable[..., Any], *inputs: torch.Tensor, parameters: tuple[int, ...] = ()
) -> Callable[[], Graph]:
    return lambda: (capture(function, inputs, parameters), list(inputs))


def _dynamic(function: Callable[..., Any], shape: Callable[..., Any], *first: int) -> Callable[[], Graph]:
    return lambda: capture_dynamic(function, shape, first)


def unbacked(function: Callable[..., Any], *inputs: torch.Tensor) -> Callable[[], Graph]:
    def graph() -> Graph:
        adapter = fake_shape_env(ShapeEnv(), allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
        mode = FakeTensorMode(shape_env=adapter)
        fakes = [fake_tensor(mode, x, (None,) * x.dim()) for x in inputs]
        with symbolic_dispatch():
            return capture(function, fakes, mode=mode), list(inputs)

    return graph


def _conv_bn_relu(x: torch.Tensor, w: torch.Tensor, *norm: torch.Tensor) -> torch.Tensor:
    mean, var, gamma, beta = norm
    y = torch.ops.aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    return torch.ops.aten._native_batch_norm_legit_no_training(y, gamma, beta, mean, var, 0.1, 1e-5)[0].relu()


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-2, -1)) * 0.25
    return torch.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v


def _bits(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    odd = (x & 1) == 1
    return torch.where(odd, x * 3 + y, x // 2), (odd | (y > 100)).any(1)


def randn(*shape: int) -> torch.Tensor:
    return torch.ones(shape)  # values do not matter


GRAPHS: dict[str, Callable[[], Graph]] = {
    "pointwise_chain": _static(lambda x, y: (x * 2 + y).sigmoid() * x.abs().sqrt(), randn(4, 20), randn(20)),
    "softmax": _static(lambda x: x.softmax(-1), randn(4, 49)),
    "layer_norm": _static(lambda x, w, b: F.layer_norm(x, (32,), w, b), randn(8, 32), randn(32), randn(32)),
    "gelu_bias": _static(lambda x, b: F.gelu(x + b), randn(8, 24), randn(24)),
    "linear_epilogue": _static(
        lambda x, w, b: F.relu(F.linear(x, w, b)) * 2, randn(8, 80), randn(12, 80), randn(12), parameters=(1, 2)
    ),
    "conv_bn_relu": _static(
        _conv_bn_relu, randn(1, 8, 16, 16), randn(8, 8, 3, 3), *[randn(8) for _ in range(4)], parameters=(1, 2, 3, 4, 5)
    ),
    "gather": _static(lambda t, i: F.embedding(i, t).sum(1), randn(10, 16), torch.tensor([[1, 9], [3, 0]])),
    "index_add": _static(lambda x, i, y: x.index_add(0, i, y * 2), randn(10, 4), torch.tensor([1, 9, 3]), randn(3, 4)),
    "cat": _static(lambda x, y: torch.cat((x * 2, y), 1) + 1, randn(6, 5), randn(6, 3)),
    "slices": _static(lambda x: (x[:, 1::2].exp(), x[2:4].t().contiguous()), randn(6, 8)),
    "reduce_inner": _static(lambda x: (x * x).sum(1) + x.amax(1), randn(10, 33)),
    "reduce_outer": _static(lambda x: x.exp().sum(0), randn(33, 64)),
    "reduce_all": _static(lambda x: (x.mean(), x.argmax()), randn(30, 40)),
    "upsample": _static(lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest") + 1, randn(1, 2, 4, 6)),
    "max_pool": _static(lambda x: F.max_pool2d(x, 3, 2, 1).relu(), randn(1, 2, 8, 8)),
    "attention": _static(
        _attention, *[randn(2, 20, 24) for _ in range(3)], torch.ones(20, 20, dtype=torch.bool).triu(1)
    ),
    "small_products": _static(lambda f, p, q: f @ p @ f.t() + q, randn(6, 6), randn(6, 6), randn(6, 6)),
    "dynamic_softmax": _dynamic(lambda x: x.softmax(-1), lambda n, c: [(n, c)], 6, 37),
    "dynamic_mean_pool": _dynamic(lambda x: x.mean((2, 3)), lambda n, h, w: [(n, 8, h, w)], 6, 14, 10),
    "unbacked_rows": unbacked(lambda x, m: x[m].sum(1) * m.sum().item(), randn(5, 8), torch.tensor([True] * 5)),
    "integers_and_bools": _static(_bits, torch.ones(4, 6, dtype=torch.int64), torch.ones(4, 6, dtype=torch.int32)),
    "bfloat16": _static(lambda x, w: (x * w).softmax(-1), randn(4, 32).bfloat16(), randn(32).bfloat16()),
}
