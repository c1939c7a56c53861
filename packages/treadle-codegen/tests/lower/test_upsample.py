"""Nearest upsampling by whole factors is integer division, exactly where eager's floats say so."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen import compile_graph
from treadle_codegen.lower.upsample import LARGEST, TRIED, exact_below, whole_factor
from treadle_shapes.expr import symbol

NEAREST = {
    1: torch.ops.aten.upsample_nearest1d.default,
    2: torch.ops.aten.upsample_nearest2d.default,
    3: torch.ops.aten.upsample_nearest3d.default,
}


def compiled_call(op, x, *args):
    """The graph of one call, compiled."""
    graph, mode = fx.Graph(), FakeTensorMode()
    placeholder = graph.placeholder("x")
    placeholder.meta["val"] = mode.from_tensor(x)
    call = graph.call_function(op, (placeholder, *args))
    with mode:
        call.meta["val"] = op(placeholder.meta["val"], *args)
    graph.output((call,))
    return compile_graph(fx.GraphModule({}, graph), [x])


def inexact(factor: int, below: int) -> list[int]:
    """Positions at which eager's float32 formula differs from integer division."""
    at = torch.arange(below)
    scaled = (at.float() * torch.tensor(1.0 / factor)).floor().long()
    return (scaled != at // factor).nonzero().flatten().tolist()


@pytest.mark.parametrize("factor", [*range(1, 33), 41, 47, 49, 55, 61, 82, 100])
def test_eager_divides_up_to_the_limit(factor):
    assert exact_below(factor) in (TRIED, LARGEST) or inexact(factor, TRIED)[0] >= exact_below(factor)
    assert not inexact(factor, min(exact_below(factor), TRIED))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
def test_all_sizes_agree_with_eager(dtype, channels_last):
    for factor in (1, 2, 3, 5, 6, 7, 10, 12, 24, 41, 49):
        for size in (*range(1, 40), 100, 333, 1000, 4097):
            if size * factor > exact_below(factor):
                continue
            x = torch.arange(size, dtype=dtype).view(1, 1, 1, size).expand(1, 2, 1, size)
            x = x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
            expected = torch.arange(size * factor, dtype=dtype) // factor
            for scales in ((), (1.0, float(factor))):
                got = NEAREST[2](x, [1, size * factor], *scales)
                assert torch.equal(got[0, 1, 0], expected), (factor, size)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_the_kernel_agrees_with_eager(dims, factor):
    x = torch.randn(2, 3, *[5, 4, 3][:dims])
    out = [n * factor for n in x.shape[2:]]
    for scales in ((), (float(factor),) * dims):
        compiled = compiled_call(NEAREST[dims], x, out, *scales)
        assert "extern" not in compiled.ir_text
        assert torch.equal(compiled(x)[0], NEAREST[dims](x, out, *scales))


def test_other_factors_are_left_to_aten():
    x = torch.randn(1, 2, 6)
    for out, scale in ((9, None), (9, 1.5), (12, 1.9), (5, None)):
        compiled = compiled_call(NEAREST[1], x, [out], scale)
        assert "extern" in compiled.ir_text
        assert torch.equal(compiled(x)[0], NEAREST[1](x, [out], scale))


def test_factors_of_symbolic_sizes():
    n = symbol("n", 1)
    assert whole_factor(n, n * 2, None) == whole_factor(n, 2 * n, 2.0) == 2
    assert whole_factor(n, n, None) == 1
    assert whole_factor(n, n + 1, None) is whole_factor(n, n * 3 // 2, 1.5) is whole_factor(n, 2 * n, 2.5) is None
    assert whole_factor(2 * n, 6 * n, None) == 3
