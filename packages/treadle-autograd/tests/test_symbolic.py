from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from treadle_autograd import aot
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, sym_int


def compile_dynamic(function, tensors, dynamic, forward=None):
    """`aot` with the first size of every tensor in `dynamic` symbolic."""
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    gm = fx.symbolic_trace(function)
    sizes: dict[int, object] = {}
    for index, (node, real) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), tensors, strict=True)):
        wanted: list[object] = [None] * real.dim()
        if index in dynamic:
            wanted[0] = sizes.setdefault(real.shape[0], env.create_symbol(real.shape[0], f"x{index}.size()[0]"))
        node.meta["example_value"] = fake_tensor(mode, real, wanted)
    return aot(gm, tensors, forward=forward or (lambda aten, inputs: aten.forward)), env


def same(function, compiled, *inputs):
    theirs, mine = [x.clone() for x in inputs], [x.clone() for x in inputs]
    expected, actual = function(*theirs), compiled(*mine)
    expected = expected if isinstance(expected, tuple) else (expected,)
    actual = actual if isinstance(actual, (tuple, list)) else (actual,)
    for e, a in zip(expected, actual, strict=True):
        torch.testing.assert_close(a, e)
        assert not isinstance(e, torch.Tensor) or a.stride() == e.stride()
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.tril_(),
        lambda y: y.masked_fill_(y > 0, 2.0),
        lambda y: y.cumsum_(-1),
        lambda y: y.index_add_(0, torch.tensor([1, 0]), y[:2] * 2),
        lambda y: y.scatter_(1, torch.zeros(y.shape, dtype=torch.int64), 3.0),
    ],
)
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.t(),
        lambda x: (x * 2).view(-1, 2, 2).permute(1, 2, 0)[1],
        lambda x: (x[None] * 2).transpose(0, 2)[..., 0],
    ],
)
def test_in_place_operators_keep_strides_at_any_size(layout, write):
    def program(x):
        y = layout(x)
        write(y)
        return y, y + 1

    compiled, _ = compile_dynamic(program, [torch.randn(6, 4)], {0})
    assert compiled.why_eager is None
    for n in (6, 3, 11):
        same(program, compiled, torch.randn(n, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).sum(-1),
        lambda x: x.view(x.shape[0] * 2, 2) + 1,
        lambda x: F.layer_norm(x.reshape(x.size(0), 2, 2).transpose(1, 2), (2,)),
        lambda x: torch.cat([x, x]) @ x.t(),
        lambda x: (x.t(), x[1:], x.shape[0] * 3 + 1),
        lambda x: (lambda y: (y, y.t(), y[1:]))(x + 1),
        lambda x: x.add_(1).view(-1),
        lambda x: F.pad(x, (1, 1)).mean(0),
        lambda x: x.expand(3, x.shape[0], 4).reshape(-1, 4),
        lambda x: x.new_zeros(x.shape[0] + 2).sum() + x.sum(),
    ],
)
def test_one_graph_for_many_sizes(function):
    compiled, env = compile_dynamic(function, [torch.randn(6, 4)], {0})
    assert compiled.why_eager is None
    for n in (6, 3, 11):
        same(function, compiled, torch.randn(n, 4))
    assert all("6" not in str(guard.expr) or "!=" in str(guard.expr) for guard in env.guards), env.guards


def test_outputs_in_channels_last_memory_stay_in_the_graph():
    def function(x):
        y = (x + 1).contiguous(memory_format=torch.channels_last)
        return y, y.permute(0, 2, 3, 1), y[1:]

    torch.manual_seed(0)
    compiled, _ = compile_dynamic(function, [torch.randn(6, 4, 3, 5)], {0})
    assert compiled.why_eager is None
    for n in (6, 3):
        same(function, compiled, torch.randn(n, 4, 3, 5))


def test_the_graph_computes_sizes_from_its_inputs():
    graphs = []

    def forward(gm, inputs):
        graphs.append(gm)
        return gm.forward

    compiled, _ = compile_dynamic(lambda x, y: (x.view(-1), y * 2), [torch.randn(6, 4), torch.randn(3)], {0}, forward)
    aten = torch.ops.aten
    assert any(node.target is aten.view.default for node in graphs[0].graph.nodes) or compiled.contract.outputs
    same(lambda x, y: (x.view(-1), y * 2), compiled, torch.randn(5, 4), torch.randn(3))


def test_a_symbolic_integer_input():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    graph = fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    x.meta["example_value"] = fake_tensor(mode, torch.randn(12), [None])
    n.meta["example_value"] = sym_int(env, env.create_symbol(3, "n", size=False))
    scaled = graph.call_function(operator.mul, (x, n))
    more = graph.call_function(operator.add, (n, 1))
    wide = graph.call_function(torch.add, (scaled, more))
    graph.output((wide, more, graph.call_method("new_zeros", (x, n))))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    compiled = aot(gm, [torch.randn(12), 3], forward=lambda aten, inputs: aten.forward)
    assert compiled.why_eager is None
    for n_value in (3, 7):
        tensor = torch.randn(12)
        first, second, third = compiled(tensor, n_value)
        torch.testing.assert_close(first, tensor * n_value + n_value + 1)
        assert second == n_value + 1 and type(second) is int and third.shape == (n_value,)
