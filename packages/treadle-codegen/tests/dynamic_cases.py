"""Functions over symbolic sizes, and how tests compile them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch

Shapes = Callable[..., Sequence[tuple[int, ...]]]


def compile_dynamic(
    function: Any, shapes: Shapes, first: tuple[int, ...], cache: Path, **options: Any
) -> CompiledGraph:
    """The function compiled with a symbol for each of the sizes `first`; `shapes(*sizes)` are the inputs' shapes."""
    gm, fakes = capture_dynamic(function, shapes, first)
    settings = {"threads": 1, "cache_dir": cache, "verify": True, **options}
    return compile_graph(gm, fakes, options=CodegenOptions(**settings))


def capture_dynamic(
    function: Any, shapes: Shapes, first: tuple[int, ...]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The ATen graph of the function over symbolic sizes, and its fake inputs."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    symbols = [env.create_symbol(n, f"size {k}", "dynamic") for k, n in enumerate(first)]
    named = {n: s for n, s in zip(first, symbols, strict=True)}
    assert len(named) == len(first), "the first sizes tell the symbols apart"
    fakes = [
        fake_tensor(mode, torch.empty(shape), [named.get(n) for n in shape], source=f"x{k}")
        for k, shape in enumerate(shapes(*first))
    ]
    with symbolic_dispatch():
        return capture(function, fakes, mode=mode), fakes


PLAIN = lambda n, c: [(n, c)]  # noqa: E731
IMAGE = lambda n, h, w: [(n, 8, h, w)]  # noqa: E731

CASES: dict[str, tuple[Any, Shapes]] = {
    "softmax": (lambda x: x.softmax(-1), PLAIN),
    "triangles": (lambda x: x.triu(x.shape[0] - 2) * 2 + x.tril(-(x.shape[1] // 3)), PLAIN),
    "softmax of columns": (lambda x: x.softmax(0), PLAIN),
    "log softmax": (lambda x: x.log_softmax(-1), PLAIN),
    "layer norm": (lambda x, y, w: F.layer_norm(x + y, (x.shape[-1],), w), lambda n, c: [(n, c), (n, c), (c,)]),
    "sums": (lambda x: (x * x).sum(-1) + x.amax(-1), PLAIN),
    "column sums": (lambda x: x.exp().sum(0) + x.amax(0), PLAIN),
    "mean of all": (lambda x: (x + 3).mean(), PLAIN),
    "columns of an image": (lambda x: x.permute(0, 2, 3, 1).contiguous().mean((1, 2)), IMAGE),
    "to channels last": (lambda x: (x * 2).contiguous(memory_format=torch.channels_last), IMAGE),
    "variance of images": (lambda x: x.var((2, 3), correction=0), IMAGE),
    "transpose": (lambda x: (x.t() + 1).contiguous(), PLAIN),
    "cat": (lambda x, y: torch.cat((x, y), 1) * 2, lambda n, c: [(n, c), (n, 5)]),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), IMAGE),
    "average pooling": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "max pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "roll": (lambda x: torch.roll(x, (-3, 1), (0, 1)) + 1, PLAIN),
}
