"""Numbers and sizes that only the run of a graph can tell, from a torch-level graph to the ATen graph and back to outputs."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from treadle_autograd import aot
from treadle_shapes import Facts, ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor, symbolic_dispatch

aten = torch.ops.aten


class _Values(fx.Interpreter):
    """Runs a graph on fake tensors and keeps what every node gives, as a tracer does."""

    def run_node(self, n):
        result = n.meta["example_value"] if n.op == "placeholder" else super().run_node(n)
        if n.op != "output":
            n.meta["example_value"] = result
        return result


def traced(function, tensors):
    """The torch-level graph of `function` with example values whose sizes may be unknown."""
    env = ShapeEnv()
    mode = fake_mode(
        shape_env=fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True),
        static_shapes=False,
    )
    gm = fx.symbolic_trace(function)
    for node, real in zip(gm.graph.find_nodes(op="placeholder"), tensors, strict=True):
        node.meta["example_value"] = fake_tensor(mode, real, [None] * real.dim())
    with mode, symbolic_dispatch():
        _Values(gm).run(*[n.meta["example_value"] for n in gm.graph.find_nodes(op="placeholder")])
    env.adapter.pending_fresh_unbacked_symbols.clear()
    # A tracer writes asserts for the facts it has learnt; here they are forgotten, so that the second trace must learn them.
    unbacked, env.facts = env.facts.unbacked, Facts()
    env.facts.unbacked |= unbacked
    env._decided.clear()
    env._answers.clear()
    return gm, env


def compile_traced(function, tensors):
    graphs = []

    def forward(gm, inputs):
        gm.graph.lint()
        graphs.append(gm)
        return gm.forward

    gm, _ = traced(function, tensors)
    compiled = aot(gm, tensors, forward=forward)
    assert compiled.why_eager is None, compiled.why_eager
    return compiled, graphs[0]


def same(function, compiled, *inputs):
    theirs, mine = [t.clone() for t in inputs], [t.clone() for t in inputs]
    expected, actual = function(*theirs), compiled(*mine)
    for e, a in zip(expected, actual, strict=True):
        assert type(e) is type(a)
        torch.testing.assert_close(a, e, equal_nan=True)
    torch.testing.assert_close(mine, theirs)


def asserts(graph):
    return [n for n in graph.graph.nodes if n.target is aten._assert_scalar.default]


X = torch.arange(24.0).reshape(4, 6) - 11

PROGRAMS = {
    "mask": lambda x, t: (x[x > 0], x[x[:, 0] > 0] * 2, torch.nonzero(x > 0)),
    "mask sizes": lambda x, t: (x[x > 0].shape[0], x[x[:, 0] > 0].sum(0)),
    "numbers": lambda x, t: (t.item(), t.item() * 2 + 1, t.item() / 4, x.sum().item(), x.sum().item() * 0.5),
    "creation": lambda x, t: (torch.zeros(t.item()), torch.arange(t.item()) + x.shape[0], x.new_ones(t.item(), 2)),
    "views of inputs": lambda x, t: (x[: t.item()], x[t.item() :], x.select(0, t.item()), x.t().narrow(1, t.item(), 1)),
    "views of results": lambda x, t: (lambda y: (y, y[1:], y.t(), y[:, 0]))(x[x[:, 0] > -6]),
    "scalars of operators": lambda x, t: (x * t.item(), x + x.mean().item(), x.clamp(max=x.mean().item())),
    "mutation": lambda x, t: (x.narrow(0, 0, t.item()).add_(1).sum(), x.mul_(2).sum()),
    "unique": lambda x, t: torch.unique((x / 3).int(), return_inverse=True, return_counts=True),
    "split": lambda x, t: torch.split(x, [t.item(), 4 - t.item()]),
    "bool": lambda x, t: ((x > 0).any().item(), torch.sym_not((x > 100).any().item())),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_functional_graph_for_all_values(name):
    function = PROGRAMS[name]
    compiled, graph = compile_traced(function, [X, torch.tensor(2)])
    assert all(
        not n.target._schema.is_mutable for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)
    )
    for x, t in ((X, 2), (X - 100, 0), (X + 100, 3), (X, 1)):
        same(function, compiled, x, torch.tensor(t))


def test_asserts_stand_behind_what_they_need_and_before_what_relies_on_them():
    def function(x, t):
        n = t.item()
        y = x * 2
        z = torch.zeros(n) + y.sum()
        return z, y[:3] + x.narrow(0, 0, 3)

    _, graph = compile_traced(function, [X, torch.tensor(2)])
    nodes = list(graph.graph.nodes)
    (check,) = asserts(graph)
    (number,) = [n for n in nodes if n.target is aten._local_scalar_dense.default]
    between = nodes[nodes.index(number) + 1 : nodes.index(check)]
    assert [n.target for n in between] == [operator.ge]
    assert check.args[1] == "an integer read from a tensor >= 0 does not hold"


def test_failing_asserts_raise_before_anything_is_written():
    def function(x, t):
        x.add_(1)
        return (x.narrow(0, 0, t.item()),)

    compiled, _ = compile_traced(function, [X, torch.tensor(2)])
    x = X.clone()
    with pytest.raises(RuntimeError, match="does not hold"):
        compiled(x, torch.tensor(9))
    torch.testing.assert_close(x, X)


@pytest.mark.parametrize(
    "reduce", [torch.max, torch.min, torch.argmax, lambda y: torch.amax(y, 0), lambda y: y.max(0)[0]]
)
def test_reductions_of_nothing_raise_as_in_eager(reduce):
    def function(x, t):
        return (reduce(x[x > 0]),)

    compiled, _ = compile_traced(function, [X, torch.tensor(2)])
    same(function, compiled, X, torch.tensor(2))
    with pytest.raises((RuntimeError, IndexError)):
        function(X - 100, torch.tensor(2))
    with pytest.raises(RuntimeError, match="!= 0 does not hold"):
        compiled(X - 100, torch.tensor(2))
