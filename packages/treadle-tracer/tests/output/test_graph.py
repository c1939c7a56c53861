"""The graph under construction: order of inputs, names, what is dropped at the end."""

from __future__ import annotations

import operator

import pytest

torch = pytest.importorskip("torch")

from compile_runs import compiled  # noqa: E402

from treadle_tracer.output.graph import GraphBuilder  # noqa: E402
from treadle_tracer.source import AttrSource, ConstSource, LocalSource  # noqa: E402

X, Y = torch.ones(2), torch.zeros(2)


def built():
    builder = GraphBuilder()
    x = builder.placeholder(LocalSource("x"), X, X)
    total = builder.call("call_function", operator.add, (x, 1), {}, X, "trace")
    y = builder.placeholder(AttrSource(LocalSource("self"), "y"), Y, Y)
    weight = builder.attribute(ConstSource(None, "self.layers[0].weight"), torch.nn.Parameter(torch.ones(2)), X)
    return builder, total, y, weight


def test_inputs_stand_in_front_in_order_of_first_use():
    builder, total, y, weight = built()
    result = builder.call("call_function", operator.mul, (total, y), {}, X, "")
    final = builder.call("call_function", operator.add, (result, weight), {}, X, "")
    gm = builder.finish([final, total])
    gm.graph.lint()
    ops = [node.op for node in gm.graph.nodes]
    assert ops == ["placeholder", "placeholder", "get_attr", *["call_function"] * 3, "output"]
    assert [source.text for source in builder.input_sources] == ["x", "self.y"]
    assert builder.example_inputs[0] is X
    assert [torch.equal(a, b) for a, b in zip(gm(X, Y), (X, X + 1), strict=True)] == [True, True]


def test_names_come_from_sources():
    builder, *_, weight = built()
    assert weight.name == "self_layers_0_weight"
    again = builder.attribute(ConstSource(None, "self.layers[0].weight"), torch.ones(1), X)
    assert again.name != weight.name


def test_the_module_holds_the_very_tensors():
    builder = GraphBuilder()
    parameter, buffer = torch.nn.Parameter(torch.ones(2)), torch.zeros(2)
    nodes = [
        builder.attribute(LocalSource("p"), parameter, parameter),
        builder.attribute(LocalSource("b"), buffer, buffer),
    ]
    gm = builder.finish([builder.call("call_function", operator.add, tuple(nodes), {}, X, "")])
    assert gm.p is parameter
    assert gm.b is buffer


def test_unused_inputs_go_but_calls_stay():
    builder, total, *_ = built()
    builder.call("call_method", "add_", (total, 1), {}, X, "")
    gm = builder.finish([total])
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_function", "call_method", "output"]
    assert [source.text for source in builder.input_sources] == ["x"]
    assert len(builder.example_inputs) == 1
    assert torch.equal(gm(X)[0], X + 2)


def test_finishing_twice_gives_the_other_outputs():
    builder, total, *_ = built()
    builder.finish([total])
    gm = builder.finish([total, total])
    assert len(gm(X)) == 2


def test_metadata():
    builder, total, y, _ = built()
    assert total.meta == {"example_value": X, "stack_trace": "trace"}
    assert y.meta["source"] == "self.y"


def test_a_tensor_called_self_is_an_input_like_any_other():
    fast, _ = compiled(lambda self: self - 3)
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), -2.0))


def test_types_of_python_given_as_dtypes():
    """Graphs that the backend leaves to eager run from their source, which cannot hold a type."""
    graphs = []

    def f(x):
        made = torch.tensor([-1], dtype=int), torch.zeros(2, dtype=bool), torch.arange(3, dtype=float)
        return *made, x.to(int), x.sum(dtype=float), x.new_full((2,), 3, dtype=complex), torch.empty_like(x, dtype=bool)

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    x = torch.randn(4)
    call, _ = compiled(f, backend)
    found = call(x)
    assert len(graphs) == 1
    assert [t.dtype for t in found] == [t.dtype for t in f(x)]
    assert all(torch.equal(a, b) for a, b in zip(found[:-1], f(x)[:-1], strict=True))
