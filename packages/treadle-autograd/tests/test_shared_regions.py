"""Programs whose repeated parts are traced once: their joint graphs, gradients and errors must be those without sharing, and eager's."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from gradient_oracle import run_operators
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joint_graphs import leaf, nodes_of, with_examples
from test_random_gradients import ALL, INPUTS, assert_same, make_inputs, observe
from torch import fx

from treadle_autograd import aot, joint, repeats, shared_regions
from treadle_autograd.errors import UnsupportedGraph
from treadle_autograd.joint import JointTrace, trace_joint

Layer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def program(layer: Layer, n_layers: int, end: Callable[..., Any] = lambda x, hidden: x) -> fx.GraphModule:
    """x, w1, .. wn -> end(the last layer's result, all layers' results)."""

    class Program(torch.nn.Module):
        def forward(self, x: torch.Tensor, ws: Sequence[torch.Tensor]) -> Any:
            hidden = []
            for k in range(n_layers):
                x = layer(x, ws[k])
                hidden.append(x)
            return end(x, hidden)

    graph = fx.Graph()
    x, *ws = [graph.placeholder(f"x{k}") for k in range(n_layers + 1)]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    found = Program()(fx.Proxy(x, tracer), [fx.Proxy(w, tracer) for w in ws])  # type: ignore[arg-type]
    items = found if isinstance(found, (tuple, list)) else (found,)
    graph.output(tuple(item.node for item in items))
    for k, node in enumerate(graph.nodes):
        node.meta["stack_trace"] = f'  File "user.py", line {k}, in f\n'
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every region met, whether its trace was shared."""
    seen: list[bool] = []
    run = shared_regions.SharedRegions.run

    def watched(self: Any, region: Any, values: Any) -> Any:
        results = run(self, region, values)
        seen.append(results is not None)
        return results

    monkeypatch.setattr(shared_regions.SharedRegions, "run", watched)
    return seen


def traces(gm: fx.GraphModule, inputs: Sequence[Any]) -> tuple[JointTrace, JointTrace]:
    """The joint graph with sharing and without; everything but the nodes' order and names is compared here."""
    with_examples(gm, inputs)
    one, other = (trace_joint(gm, inputs, {}, share=share) for share in (True, False))
    assert one is not None
    assert other is not None
    one.graph.lint()
    for name in ("n_outputs", "tangents", "gradients", "sources", "lossy", "n_primals"):
        assert getattr(one, name) == getattr(other, name), name
    assert len(one.states) == len(other.states)
    assert one.contract.mutations == other.contract.mutations
    assert one.contract.versions == other.contract.versions
    assert str(one.contract.outputs) == str(other.contract.outputs)
    return one, other


def check(layer: Layer, *inputs: torch.Tensor, **options: Any) -> None:
    one, other = traces(program(layer, len(inputs) - 1, **options), inputs)
    assert nodes_of(one.graph) == nodes_of(other.graph)


def check_values(layer: Layer, *inputs: torch.Tensor, **options: Any) -> None:
    """As `check`, where a layer's result has gradients from elsewhere: they are summed up in another order."""
    one, other = traces(program(layer, len(inputs) - 1, **options), inputs)
    assert len(one.graph.nodes) == len(other.graph.nodes)
    example = [n.meta["val"] for n in one.graph.find_nodes(op="placeholder")][len(inputs) :]
    arguments = [x.detach() for x in inputs] + [torch.randn(x.shape) for x in example]
    found = []
    for trace in (one, other):
        torch.manual_seed(1)
        found.append(fx.Interpreter(fx.GraphModule(torch.nn.Module(), trace.graph)).run(*arguments))
    torch.testing.assert_close(found[0], found[1])


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + torch.dropout(torch.softmax(x @ w, -1), 0.5, True).tanh()


def test_the_joint_graph_is_the_one_without_sharing(shared: list[bool]) -> None:
    check(block, *[leaf(4, 4) for _ in range(5)])
    assert shared == 4 * [True]


def test_lines_are_those_of_the_layer(shared: list[bool]) -> None:
    one, other = traces(program(block, 3), [leaf(4, 4) for _ in range(4)])
    lines = [sorted(str(n.meta.get("stack_trace")) for n in trace.graph.nodes) for trace in (one, other)]
    assert lines[0] == lines[1]
    assert all(shared)
    assert len(set(lines[0])) > 12


def test_frozen_layers_are_shared_among_themselves(shared: list[bool]) -> None:
    weights = [leaf(4, 4).requires_grad_(k > 2) for k in range(6)]
    check(block, leaf(4, 4), *weights)
    assert shared == 6 * [True]


def test_layers_below_the_first_gradient_are_not_shared(shared: list[bool]) -> None:
    x, *weights = [torch.randn(4, 4) for _ in range(7)]
    for w in weights[3:]:
        w.requires_grad_()
    check(block, x, *weights)
    assert shared == [False, False, False, True, True, True]


def test_all_hidden_states_are_outputs(shared: list[bool]) -> None:
    check_values(block, *[leaf(4, 4) for _ in range(5)], end=lambda x, hidden: hidden)
    assert all(shared)


def test_a_hidden_state_with_a_tangent_of_other_strides(shared: list[bool]) -> None:
    """The sum's tangent is expanded; the transposed one of the product has other strides than the layer's result."""
    check_values(block, *[leaf(4, 4) for _ in range(5)], end=lambda x, hidden: (x.sum(), hidden[1].t() @ hidden[2]))
    assert all(shared)


def test_a_second_backward_pass_with_a_size_that_the_first_has_asked_for() -> None:
    """Backward expands the mean's gradient to the number of rows, a symbol; its node is made once, and stands in the first pass's nodes."""

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * w) - (x * w).mean(0)

    inputs = [leaf(6, 4) for _ in range(5)]
    gm = program(layer, 4, end=lambda x, hidden: (x.sum(), hidden[1].t() @ hidden[2]))
    joint = trace_joint(with_examples(gm, inputs, dynamic=True), inputs, {})
    assert joint is not None
    joint.graph.lint()


def test_a_layer_in_place(shared: list[bool]) -> None:
    check(lambda x, w: (x @ w).add_(x).mul_(2).sin().tanh_(), *[leaf(4, 4) for _ in range(5)])
    assert all(shared)
    assert shared


def test_a_layer_that_writes_to_its_argument_is_not_shared(shared: list[bool]) -> None:
    inputs = [leaf(4, 4), *[torch.randn(4, 4) for _ in range(4)]]
    check(lambda x, w: (x * w.add_(1).exp()).sin().cos().tanh(), *inputs)
    assert not any(shared)


def test_a_layer_that_gives_a_view_of_its_argument_is_not_shared(shared: list[bool]) -> None:
    check(
        lambda x, w: (x * w).sin().cos().tanh().t().view_as(x).t(),
        *[leaf(4, 4) for _ in range(4)],
        end=lambda x, hidden: hidden,
    )


def test_a_gradient_that_is_the_tangent(shared: list[bool]) -> None:
    """The gradients of the additions' arguments are the tangent itself; those of the bias, a view of it."""
    check(lambda x, w: ((x.sin() + w) + x.cos()) + w.t(), *[leaf(4, 4) for _ in range(5)])
    assert all(shared)
    assert shared


@pytest.mark.parametrize("end", [lambda both: both.sin().tanh()[:4].exp(), lambda both: both[:4] + both[4:].t()])
def test_gradients_that_are_parts_of_one(shared: list[bool], end: Callable[..., Any]) -> None:
    check(lambda x, w: end(torch.cat([x.cos(), w])), *[leaf(4, 4) for _ in range(5)])
    check(lambda x, w: end(torch.cat([w, x])).sin(), *[leaf(4, 4) for _ in range(5)])
    assert all(shared)
    assert shared


def test_arguments_that_are_parts_of_one(shared: list[bool]) -> None:
    gm = program(lambda x, w: (x + w).t().sin().t().cos(), 4)
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    with gm.graph.inserting_before(first):
        parts = [gm.graph.call_function(torch.narrow, (w, 0, k, 4)) for k, w in enumerate(first.all_input_nodes)]
    for part in parts:
        part.args[0].replace_all_uses_with(part, delete_user_cb=lambda user, part=part: user is not part)  # type: ignore[union-attr]
    gm.recompile()
    one, other = traces(gm, [leaf(5, 4), leaf(5, 4), *[leaf(4, 4) for _ in range(3)]])
    assert nodes_of(one.graph) == nodes_of(other.graph)
    assert all(shared)


def test_gradients_that_share_memory_are_apart_in_the_graph() -> None:
    """Both gradients are views of the tangent. Each is to have memory of its own, as without sharing."""

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.t() + w.t()).sin().sin().add(w.t())

    gm = with_examples(program(layer, 3), [leaf(3, 3) for _ in range(4)])
    inputs = [leaf(3, 3) for _ in range(4)]
    compiled = aot(gm, inputs, inference=False, forward=run_operators)
    compiled(*inputs)[0].backward(torch.ones(3, 3))
    storages = {x.grad.untyped_storage().data_ptr() for x in inputs}  # type: ignore[union-attr]
    assert len(storages) == len(inputs)


def test_an_argument_of_all_layers(shared: list[bool]) -> None:
    mask = leaf(4, 4)
    gm = program(lambda x, w: block(x, w), 4)
    graph = gm.graph
    placeholder = graph.find_nodes(op="placeholder")[0]
    for node in graph.find_nodes(op="call_function", target=torch.softmax):
        with graph.inserting_before(node):
            masked = graph.call_function(torch.mul, (node.args[0], placeholder))
        node.args = (masked, *node.args[1:])
    gm.recompile()
    inputs = [mask, *[leaf(4, 4) for _ in range(4)]]
    traces(gm, inputs)
    assert all(shared)
    assert len(shared) >= 3
    compiled = aot(gm, inputs, inference=False, forward=run_operators)
    torch.manual_seed(0)
    mine = torch.autograd.grad(compiled(*inputs)[0].sum(), inputs)
    torch.manual_seed(0)
    theirs = torch.autograd.grad(gm(*inputs)[0].sum(), inputs)
    torch.testing.assert_close(mine, theirs)


def test_a_result_changed_in_place_that_backward_needs(shared: list[bool]) -> None:
    """Eager raises, so the graph runs in eager."""
    gm = program(lambda x, w: (x @ w).sin().cos().exp(), 4, lambda x, hidden: (hidden[1].mul_(2) + x,))
    inputs = [leaf(4, 4) for _ in range(5)]
    with_examples(gm, inputs)
    for share in (True, False):
        with pytest.raises(UnsupportedGraph, match="modified by an inplace operation"):
            trace_joint(gm, inputs, {}, share=share)
    assert all(shared)
    assert shared


def test_a_result_changed_in_place_that_backward_does_not_need(shared: list[bool]) -> None:
    check(
        lambda x, w: (x.sin() @ w).cos().exp().mul(2).add(1),
        *[leaf(4, 4) for _ in range(5)],
        end=lambda x, hidden: (x.mul_(3), x + 1),
    )
    assert all(shared)
    assert shared


def test_an_argument_changed_in_place_that_backward_needs(shared: list[bool]) -> None:
    inputs = [leaf(4, 4) for _ in range(4)]
    gm = program(lambda x, w: (x @ w).sin().cos().tanh(), 3, lambda x, hidden: (hidden[0].add_(1) * x,))
    with_examples(gm, inputs)
    for share in (True, False):
        with pytest.raises(UnsupportedGraph, match="modified by an inplace operation"):
            trace_joint(gm, inputs, {}, share=share)


def test_autocast_is_not_shared(shared: list[bool]) -> None:
    gm = with_examples(program(block, 3), [leaf(4, 4) for _ in range(4)])
    with torch.autocast("cpu", torch.bfloat16):
        trace_joint(gm, [leaf(4, 4) for _ in range(4)], {})
    assert shared == 3 * [False]


def test_a_backward_pass_that_cannot_be_recorded_apart_is_traced_without_sharing(
    monkeypatch: pytest.MonkeyPatch, shared: list[bool]
) -> None:
    trace = shared_regions._trace_backward
    calls: list[int] = []

    def declining(region: Any, tangents: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise UnsupportedGraph("for the test")
        return trace(region, tangents)

    monkeypatch.setattr(shared_regions, "_trace_backward", declining)
    check(block, *[leaf(4, 4) for _ in range(4)], end=lambda x, hidden: x.sum())
    assert len(calls) == 2
    assert all(shared)


def test_gradients_of_gradients(shared: list[bool]) -> None:
    gm = with_examples(program(block_without_dropout, 3), [leaf(4, 4) for _ in range(4)])
    inputs = [leaf(4, 4).double() for _ in range(4)]
    inputs = [x.detach().requires_grad_() for x in inputs]
    with_examples(gm, inputs)
    compiled = aot(gm, inputs, inference=False, forward=run_operators)
    assert shared == 3 * [True]
    assert torch.autograd.gradgradcheck(lambda *xs: compiled(*xs)[0], inputs)


def block_without_dropout(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x + torch.softmax(x @ w, -1).tanh().sin()


# -- random programs --------------------------------------------------------------------------------------------------

BODY = st.lists(st.tuples(st.sampled_from(sorted(ALL)), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5)


def build(before: Any, body: Any, count: int, outputs: Any, layouts: Any) -> fx.GraphModule | None:
    """Steps, then `count` times the steps of `body` on its last result, an input and a result from before; None where eager refuses it."""
    graph = fx.Graph()
    _, inputs = make_inputs(layouts)
    values = [(graph.placeholder(f"x{i}"), t) for i, t in enumerate(inputs)]

    def append(steps: Any, local: list[Any]) -> None:
        for name, i, j in steps:
            (node_a, a), (node_b, b) = local[i % len(local)], local[j % len(local)]
            result = ALL[name](a, b)
            local.append((graph.call_function(ALL[name], (node_a, node_b)), result))

    try:
        append(before, values)
        carried, n_before = values[-1], len(values)
        for k in range(count):
            local = [carried, values[k % len(layouts)], values[n_before // 2]]
            append(body, local)
            values += local[3:]
            carried = local[-1]
    except RuntimeError:  # in place on a leaf or on overlapping memory
        return None
    graph.output(tuple(values[-1 - i % len(values)][0] for i in outputs))
    return fx.GraphModule(torch.nn.Module(), graph)


@contextlib.contextmanager
def sharing(is_on: bool) -> Iterator[list[int]]:
    """Every repeat is shared, or none. Counts the regions shared."""
    seen: list[int] = []
    trace, run = joint.trace_joint, shared_regions.SharedRegions.run

    def watched(self: Any, region: Any, values: Any) -> Any:
        results = run(self, region, values)
        seen.extend([1] * (results is not None))
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_LEAST_SAVED", 1)
        patch.setattr(repeats, "_LEAST_PARTS", 2)
        patch.setattr(shared_regions.SharedRegions, "run", watched)
        patch.setattr(joint, "trace_joint", lambda *args: trace(*args, share=is_on))
        yield seen


def test_random_programs() -> None:
    n_shared = 0

    @settings(
        max_examples=int(os.environ.get("TREADLE_RANDOM_PROGRAMS", "300")),
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(
        st.lists(st.tuples(st.sampled_from(sorted(ALL)), st.integers(0, 20), st.integers(0, 20)), max_size=2),
        BODY,
        st.integers(2, 4),
        st.lists(st.integers(0, 20), min_size=1, max_size=3),
        INPUTS,
        st.integers(0, 12),
    )
    def run(before: Any, body: Any, count: int, outputs: Any, layouts: Any, changed: int) -> None:
        nonlocal n_shared
        gm = build(before, body, count, outputs, layouts)
        if gm is None:
            return
        with_examples(gm, make_inputs(layouts)[1])
        seen: list[Any] = []
        why: list[Any] = []
        for is_on in (True, False):
            with sharing(is_on) as found:
                compiled = aot(gm, make_inputs(layouts)[1], inference=False, forward=run_operators)
                seen.append(observe(compiled, layouts, changed))
                # PyTorch's errors name autograd's nodes, and a shared region is one.
                why.append(re.sub(r"output \d+ of \w+", "an output", compiled.why_eager or ""))
            n_shared += sum(found)
        assert why[0] == why[1]
        assert_same(seen[0], seen[1])
        theirs = observe(gm, layouts, changed)
        if theirs[-1] is True and seen[0][-1] is not True:
            return  # eager had saved what was changed, and we had not: the gradients are those of the values before the change
        assert_same(seen[0], theirs)

    run()
    assert n_shared
