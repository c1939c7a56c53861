"""Convolutions change their layout inside a graph, and nobody outside sees it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture
from torch import fx

from treadle_codegen.rewrite.pipeline import EarlyRewrite, convolves, rewrite_early
from treadle_codegen.targets.triton import channels_last

Function = Callable[..., tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's convolutions treat layouts as cuDNN's do."""
    monkeypatch.setattr(channels_last, "_DEVICES", ("cpu",))
    monkeypatch.setattr(channels_last, "_tf32_allowed", lambda: True)


def relaid(function: Function, inputs: list[torch.Tensor]) -> tuple[fx.GraphModule, fx.GraphModule]:
    gm = capture(function, inputs)
    problems: list[str] = []
    new = rewrite_early(
        gm,
        (EarlyRewrite(channels_last.convolve_channels_last, convolves),),
        lambda name, text, found: problems.extend(found()),
    )
    assert problems == []
    return gm, new


def layouts(gm: fx.GraphModule) -> list[bool]:
    convolutions = [n for n in gm.graph.nodes if n.target is channels_last.CONVOLUTION]
    return [n.meta["val"].is_contiguous(memory_format=torch.channels_last) for n in convolutions]


X, W1, W2 = torch.randn(2, 8, 10, 10), torch.randn(16, 8, 3, 3), torch.randn(4, 16, 3, 3)


def test_a_chain_of_convolutions_is_channels_last_throughout() -> None:
    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.conv2d(F.relu(F.conv2d(x, v)), w).flatten(1).sum(1),)

    gm, new = relaid(function, [X, W1, W2])
    assert layouts(gm) == [False, False] and layouts(new) == [True, True]
    copies = [n for n in new.graph.nodes if n.target is torch.ops.aten.clone.default]
    assert len(copies) == 4  # of the input, the weights, and for the flat view; none between the convolutions
    result = fx.Interpreter(fx.GraphModule(gm, new.graph)).run(X, W1, W2)
    torch.testing.assert_close(result, function(X, W1, W2), rtol=1e-4, atol=1e-4)


def test_outputs_keep_their_strides() -> None:
    gm, new = relaid(lambda x, w: (F.conv2d(x, w),), [X, W1])
    assert layouts(new) == [True]
    (result,) = fx.Interpreter(fx.GraphModule(gm, new.graph)).run(X, W1)
    assert result.stride() == F.conv2d(X, W1).stride()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (F.conv_transpose2d(x, w.transpose(0, 1)),),
        lambda x, w: (F.conv1d(x[:, :, 0], w[:, :, 0]),),
        lambda x, w: (F.conv2d(x.double(), w.double()),),
        lambda x, w: (F.conv2d(x, w), F.conv2d(x, w) + 1, x * 2),
        lambda x, w: (F.conv2d(F.conv2d(x, w[:8, :1], groups=8), w),),
    ],
    ids=["transposed", "one-dimensional", "double", "many images returned", "grouped"],
)
def test_what_stays_as_it_is(function: Function) -> None:
    gm, new = relaid(function, [X, W1])
    assert new is gm
