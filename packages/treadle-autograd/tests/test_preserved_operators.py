"""With symbolic sizes, interpolations and other preserved operators are one node, as with fixed sizes."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from treadle_autograd import aot
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor

CASES = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), "aten.upsample_nearest2d.default"),
    "to a size": (lambda x: F.interpolate(x, size=(9, 11)), "aten.upsample_nearest2d.default"),
    "half": (lambda x: F.interpolate(x, scale_factor=(1.5, 2)), "aten.upsample_nearest2d.default"),
    "exact": (
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest-exact"),
        "aten._upsample_nearest_exact2d.default",
    ),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "aten.upsample_bilinear2d.default"),
    "corners": (
        lambda x: F.interpolate(x, size=7, mode="bilinear", align_corners=True),
        "aten.upsample_bilinear2d.default",
    ),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bicubic"), "aten.upsample_bicubic2d.default"),
    "hardshrink": (lambda x: F.hardshrink(x), "aten.hardshrink.default"),
    "softshrink": (lambda x: F.softshrink(x), "aten.softshrink.default"),
}


def trace(function, *shape, policy="dynamic"):
    """`function` over an input with all sizes symbolic, and a real tensor of the shape."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    real = torch.randn(shape)
    sizes = [env.create_symbol(n, f"x.shape[{d}]", dynamic=policy) for d, n in enumerate(shape)]
    gm = fx.symbolic_trace(function)
    placeholder = next(n for n in gm.graph.nodes if n.op == "placeholder")
    placeholder.meta["example_value"] = fake_tensor(mode, real, sizes)
    return aot(gm, [real], forward=lambda graph, _: graph), real


@pytest.mark.parametrize("name", CASES)
def test_the_operator_stays_whole(name):
    function, operator = CASES[name]
    compiled, x = trace(function, 2, 3, 6, 8)
    assert compiled.why_eager is None
    calls = [str(n.target) for n in compiled.aten_graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    assert [c for c in calls if not c.startswith("aten.sym_")] == [operator]
    for other in (x, torch.randn(3, 2, 5, 4), torch.randn(2, 2, 12, 10)):
        torch.testing.assert_close(compiled(other)[0], function(other))


def test_other_dimensions_stay_whole_too():
    for rank, mode in ((1, "linear"), (3, "trilinear"), (1, "nearest"), (3, "nearest")):

        def double(x):
            return F.interpolate(x, scale_factor=2, mode=mode)  # noqa: B023 (traced at once)

        compiled, x = trace(double, *(2, 3, 4, 5, 6)[: rank + 2])
        calls = [str(n.target) for n in compiled.aten_graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
        assert len([c for c in calls if not c.startswith("aten.sym_")]) == 1
        torch.testing.assert_close(compiled(x)[0], F.interpolate(x, scale_factor=2, mode=mode))


def test_a_kernel_may_ask_for_all_sizes_at_once():
    """`aten.size.default`, by which C++ asks for numbers, gives no node; the sizes become constants."""
    compiled, x = trace(lambda x: torch.kron(x, x).amax(-1, keepdim=True), 2, 3, policy="auto")
    assert compiled.why_eager is None
    torch.testing.assert_close(compiled(x)[0], torch.kron(x, x).amax(-1, keepdim=True))
