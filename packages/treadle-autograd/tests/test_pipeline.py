from __future__ import annotations

import operator

import pytest
import torch
from aten_runner import compile_traced, run_aten
from torch import fx
from torch.nn import functional as F

import treadle_autograd
from treadle_autograd import aot
from treadle_autograd.contract import (
    Constant,
    FreshOutput,
    InputItself,
    Mutation,
    SameAsOutput,
    ViewOfFresh,
    ViewOfInput,
)


def check(function, *inputs, eager: bool = False):
    """Run `function` eagerly and compiled on equal inputs; values, strides and changes to the inputs must agree."""
    compiled = compile_traced(function, inputs)
    assert (compiled.why_eager is not None) == eager, compiled.why_eager
    for _ in range(2):
        mine = [x.clone(memory_format=torch.preserve_format) for x in inputs]
        theirs = [x.clone(memory_format=torch.preserve_format) for x in inputs]
        torch.manual_seed(0)
        expected = function(*theirs)
        torch.manual_seed(0)
        actual = compiled(*mine)
        expected = expected if isinstance(expected, tuple) else (expected,)
        actual = actual if isinstance(actual, (tuple, list)) else (actual,)
        assert len(expected) == len(actual)
        for e, a in zip(expected, actual, strict=True):
            if isinstance(e, torch.Tensor):
                torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-6)
                assert a.stride() == e.stride()
            else:
                assert a == e
        for e, a in zip(theirs, mine, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-6, atol=1e-6)
    return compiled


def test_outputs_are_described_by_kind():
    def f(x, y):
        x.add_(1)
        z = y * 2
        return x, x[0], z.t(), z, z, 5, None

    compiled = check(f, torch.randn(3, 4), torch.randn(3, 4))
    assert compiled.contract.mutations == (Mutation(0, 0),)
    kinds = [type(o) for o in compiled.contract.outputs]
    assert kinds == [InputItself, ViewOfInput, ViewOfFresh, FreshOutput, SameAsOutput, Constant, Constant]


def test_the_same_objects_come_back():
    compiled = compile_traced(lambda x: (x.add_(1), x, x + 1), [torch.ones(3)])
    x = torch.ones(3)
    first, second, third = compiled(x)
    assert first is x and second is x and third is not x
    twice = compile_traced(lambda x: (lambda y: (y, y))(x * 2), [torch.ones(3)])
    a, b = twice(torch.ones(3))
    assert a is b


def test_outputs_share_storage_as_in_eager():
    def f(x):
        y = x * 2
        return y[1:], y.t(), y.reshape(-1)

    tail, transposed, flat = check(f, torch.randn(3, 4))(torch.ones(3, 4))
    flat[5] = 100.0
    assert tail[0, 1] == 100 and transposed[1, 1] == 100


def test_equal_but_separate_outputs_stay_separate():
    a, b, c = check(lambda x: (x + 1, x + 1, x.clone()), torch.ones(3))(torch.ones(3))
    a[0] = 9
    assert b[0] == 2 and c[0] == 1


def test_writing_to_a_view_output_changes_the_input():
    (view,) = compile_traced(lambda x: (x[1:].t(),), [torch.zeros(3, 4)])(x := torch.zeros(3, 4))
    view[2, 1] = 7
    assert x[2, 2] == 7


def test_view_of_an_input_with_its_own_offset():
    compiled = compile_traced(lambda x: (x[1:],), [torch.arange(12.0)[4:]])
    big = torch.arange(24.0)
    assert torch.equal(compiled(big[10:18])[0], big[11:18])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(2, 6).mul_(3).sum() + x.sum(),
        lambda x: (x.t().add_(1), x * 2),
        lambda x: x[0].fill_(3) + x[1],
        lambda x: x.clone().zero_() + x,
        lambda x: torch.empty_like(x).copy_(x).add_(1),
        lambda x: x.masked_fill_(x > 0, 1.0),
        lambda x: (x.diagonal().zero_(), x),
        lambda x: x.narrow(0, 1, 2).copy_(x.narrow(0, 0, 2).clone()),
        lambda x: x.detach().mul_(2),
        lambda x: torch.add(x, 1, out=torch.empty(3, 4)),
        lambda x: (x.expand(2, 3, 4), (x + 1).expand(2, 3, 4)),
        lambda x: (x + 1)[1:2].expand(4, 4),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.dropout(F.dropout(x, 0.5, training=True) + torch.rand_like(x), 0.25, training=True),
        lambda x: (x.to(torch.float32), x.contiguous(), x.to(torch.float64)),
        lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0]) * x,
        lambda x: (lambda parts: (parts[1], parts[0]))(x.unsqueeze(0).transpose(0, 2).chunk(2)),
    ],
)
def test_programs(function):
    check(function, torch.randn(3, 4))


def test_permuted_input_keeps_its_strides_through_mutation():
    x = torch.randn(2, 3, 4, 5).permute(0, 3, 1, 2)
    check(lambda x: (x.mul_(2), x.permute(0, 2, 3, 1), x + 1), x)


def test_training_batch_norm_updates_its_buffers():
    def f(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    compiled = check(f, torch.randn(2, 3, 4, 4), torch.zeros(3), torch.ones(3))
    assert [m.input for m in compiled.contract.mutations] == [1, 2]


def test_parameters_are_static_inputs_and_buffers_written_back():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))
            self.register_buffer("count", torch.zeros(()))

    model = Model()
    graph = fx.Graph()
    x, weight, count = graph.placeholder("x"), graph.get_attr("weight"), graph.get_attr("count")
    graph.call_method("add_", (count, 1))
    product = graph.call_function(torch.matmul, (x, weight))
    graph.output((graph.call_function(torch.add, (product, graph.call_method("t", (weight,)))),))
    compiled = aot(fx.GraphModule(model, graph), [torch.randn(4, 4)], forward=run_aten)
    assert {id(t) for t in compiled.contract.static_tensors} == {id(model.weight), id(model.count)}
    nodes = [n for n in compiled.aten_graph.graph.nodes if n.op == "placeholder"]
    assert [n.meta.get("static_input") is not None for n in nodes] == [True, True, False]
    with torch.no_grad():
        for step in range(1, 3):
            model.weight.mul_(2)
            x = torch.randn(4, 4)
            (result,) = compiled(x)
            torch.testing.assert_close(result, x @ model.weight + model.weight.t())
            assert model.count == step


def test_overlapping_inputs_run_eagerly_when_one_is_changed():
    def f(x, y):
        x.add_(1)
        return y * 2

    compiled = compile_traced(f, [torch.zeros(4), torch.zeros(4)])
    base = torch.zeros(6)
    result = compiled(base[:4], base[2:])
    expected = f((other := torch.zeros(6))[:4], other[2:])
    assert torch.equal(result if isinstance(result, torch.Tensor) else result[0], expected)
    assert torch.equal(base, other)
    x = torch.zeros(4)
    same = compiled(x, x)
    assert torch.equal(same if isinstance(same, torch.Tensor) else same[0], torch.full((4,), 2.0))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x.t_(),
        lambda x: x.unsqueeze_(0),
        lambda x: (x, x.resize_(2, 2)),
        lambda x: x.view(torch.int32),
        lambda x: x.clone().requires_grad_(),
        lambda x: (x.unsqueeze(0).expand(2, 4, 4).fill_(7), x),
    ],
)
def test_what_has_no_functional_form_runs_eagerly_with_a_reason(function):
    check(function, torch.randn(4, 4).double().float(), eager=True)


def test_bad_arguments_and_bugs():
    gm = fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(ValueError, match="inference=False"):
        aot(gm, [torch.ones(2)], backward=run_aten, forward=run_aten)
    with pytest.raises(ValueError, match="again was given, .* inference=False"):
        aot(gm, [torch.ones(2)], forward=run_aten, again=lambda graph, others: [])

    def explode(x, y):
        raise KeyError("boom")

    gm = fx.symbolic_trace(lambda x: torch.relu(x))
    gm.graph.find_nodes(op="call_function", target=torch.relu)[0].target = lambda x: explode(x, 1)
    with pytest.raises(treadle_autograd.InternalError, match="functionalise.*boom"):
        aot(gm, [torch.ones(2)], forward=run_aten)


def test_unused_random_draws_are_kept_and_unused_arithmetic_is_not():
    def f(x):
        torch.rand_like(x)
        x.exp()
        return x + torch.rand_like(x)

    compiled = check(f, torch.zeros(4))
    targets = [str(n.target) for n in compiled.aten_graph.graph.nodes if n.op == "call_function"]
    assert targets.count("aten.rand_like.default") == 2 and "aten.exp.default" not in targets


def test_decompositions_are_applied_and_may_decline():
    aten = torch.ops.aten
    rules = {aten.silu.default: lambda x: x * aten.sigmoid.default(x), aten.exp.default: lambda x: NotImplemented}
    seen = []

    def forward(gm, inputs):
        seen.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        return run_aten(gm, inputs)

    aot(fx.symbolic_trace(lambda x: F.silu(x).exp()), [torch.ones(2)], forward=forward, decompositions=rules)
    assert seen == ["aten.sigmoid.default", "aten.mul.Tensor", "aten.exp.default"]


def test_stack_traces_reach_the_aten_nodes():
    gm = fx.symbolic_trace(lambda x: F.layer_norm(x, (4,)))
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = '  File "model.py", line 12, in forward\n    y = norm(x)'
    compiled = aot(gm, [torch.ones(2, 4)], forward=run_aten)
    calls = [n for n in compiled.aten_graph.graph.nodes if n.op == "call_function"]
    assert calls and all("line 12" in n.meta["stack_trace"] for n in calls)
    assert all("val" in n.meta for n in compiled.aten_graph.graph.nodes if n.op != "output")


def test_constants_met_while_tracing_do_not_shift_the_inputs():
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.call_function(operator.setitem, (b, 0, 3))  # the 3 becomes a constant tensor, an input that nobody passes
    graph.output((graph.call_function(torch.add, (a, b)), b, graph.call_method("view", (a, 2, 1))))
    gm = fx.GraphModule({}, graph)
    compiled = aot(gm, [torch.ones(2), torch.ones(2)], forward=lambda gm, inputs: gm)
    assert compiled.why_eager is None
    x, y = torch.ones(2), torch.ones(2)
    total, same, view = compiled(x, y)
    assert y.tolist() == [3, 1]
    assert total.tolist() == [4, 2]
    assert same is y
    assert view.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("shifts", [(1, 1), (-2, 1), ((1, -2), (1, 3))], ids=str)
def test_roll_keeps_channels_last_as_in_eager(shifts):
    def fn(x):
        return x.transpose(1, 2).unsqueeze(2).roll(*shifts) + 1

    x = torch.randn(2, 6, 6)
    compiled = aot(fx.symbolic_trace(fn), [x], forward=lambda gm, inputs: gm)
    (node,) = [n for n in compiled.aten_graph.graph.nodes if n.target is torch.ops.aten.add.Tensor]
    assert node.meta["val"].stride() == fn(x).stride()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("function", [torch.quantile, torch.nanquantile])
def test_values_that_only_the_whole_operator_checks(function, training):
    x = torch.rand(4, requires_grad=training)
    compiled = compile_traced(lambda x, q: (function(x, q) * 2,), [x, torch.rand(2)])
    assert compiled.why_eager is None
    good = torch.tensor([0.5, 1.0])
    torch.testing.assert_close(compiled(x, good)[0], function(x, good) * 2)
    for wrong in (2.0, -0.1, torch.nan):
        with pytest.raises(RuntimeError, match="must be in the range"):
            compiled(x, torch.tensor([0.5, wrong]))


@pytest.mark.parametrize("changes", [False, True])
def test_compressed_sparse_tensors_have_no_strides(changes: bool) -> None:
    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone().add_(1) if changes else x * 2
            return y.to_sparse_csr() @ torch.ones(4, 2)

    x = torch.randn(4, 4).relu()
    run = aot(torch.fx.symbolic_trace(Product()), [x], forward=lambda gm, inputs: gm)
    assert run.why_eager is None
    torch.testing.assert_close(list(run(x)), [Product()(x)])


def test_how_many_elements_a_sparse_tensor_holds_is_not_traced() -> None:
    class Values(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse_csr().values() * 2

    x = torch.randn(4, 4).relu()
    run = aot(torch.fx.symbolic_trace(Values()), [x], forward=lambda gm, inputs: gm)
    assert "how many elements" in run.why_eager


def test_detached_inputs_are_outputs_of_graphs_without_a_history():
    """A graph behind a break gives back `loss.detach()`, a view of an input that requires gradients."""

    def program(x, w):
        return x * 2, w.detach(), w.t().detach(), x[1:], w.detach()[0]

    x, w = torch.randn(3), torch.randn(2, 3, requires_grad=True)
    run = aot(fx.symbolic_trace(program), [x, w], inference=True, forward=lambda gm, _: gm)
    assert run.why_eager is None
    for base in (w, w * 2):
        found, expected = run(x, base), program(x, base)
        for mine, theirs in zip(found, expected, strict=True):
            facts = [(t.requires_grad, t.is_leaf, t._is_view(), t.stride(), t.grad_fn) for t in (mine, theirs)]
            assert facts[0] == facts[1]
            torch.testing.assert_close(mine, theirs)
        found[1].add_(1)
        assert found[2]._version == base._version == 1 and torch.equal(found[2].t(), base)


def test_other_views_of_inputs_that_require_gradients_run_in_eager():
    w = torch.randn(2, 3, requires_grad=True)
    graph = fx.symbolic_trace(lambda w: (w[0],))
    assert aot(graph, [w], inference=True, forward=lambda gm, _: gm).why_eager is not None


def _detached_first(x, w):
    x.detach_()
    return x * 2, (x * w).sum()


def _changed_and_detached(x, w):
    x.mul_(3).detach_()
    return x * 2, (x * w).sum()


def _used_before(x, w):
    y = x + w
    x.detach_()
    return y, x * 2


def _viewed_afterwards(x, w):
    x.detach_()
    return x[1:], (x * w).sum()


@pytest.mark.parametrize(
    ("program", "why_eager"),
    [
        (_detached_first, None),
        (_changed_and_detached, None),
        (_used_before, "an input begins or ceases to require gradients"),
        (_viewed_afterwards, "an output is a view of an input that ceases to require gradients"),
    ],
)
@pytest.mark.parametrize("trains", [False, True])
def test_inputs_that_are_detached_in_place(program, why_eager, trains):
    """The state of a recurrent network, at the beginning of a step of truncated backpropagation."""
    found = []
    for compiles in (False, True):
        leaf, w = torch.arange(3.0, requires_grad=True), torch.full((3,), 2.0, requires_grad=trains)
        x, run = leaf * 2, program
        if compiles:
            run = aot(fx.symbolic_trace(program), [x, w], inference=False, forward=lambda gm, _: gm)
            assert run.why_eager == (why_eager if trains or program is not _used_before else run.why_eager)
        results = run(x, w)
        history = sum(result.sum() for result in results if result.requires_grad)
        gradients = torch.autograd.grad(history, [leaf, w], allow_unused=True) if trains else []
        found.append([
            [(t.requires_grad, t.is_leaf, t.tolist()) for t in (x, *results)],
            [None if gradient is None else gradient.tolist() for gradient in gradients],
        ])  # fmt: skip
    assert found[0] == found[1]
