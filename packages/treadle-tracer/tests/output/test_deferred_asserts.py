"""Failing asserts of a graph are told apart by their number, whatever a backend makes of the message."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from treadle_tracer.output.deferred_asserts import (
    AssertFailed,
    asserts_of,
    failed_assert,
    raising_as_program,
    raising_typed,
    tag_asserts,
)


def graph_with_asserts():
    graph = fx.Graph()
    x = graph.placeholder("x")
    for bound, kind in ((0, IndexError), (-5, RuntimeError)):
        condition = graph.call_function(operator.gt, (graph.call_method("item", (x,)), bound))
        check = graph.call_function(torch.ops.aten._assert_scalar.default, (condition, "too small"))
        check.meta["raises"] = kind
    graph.output((graph.call_function(torch.add, (x, 1)),))
    tag_asserts(graph)
    return fx.GraphModule(torch.nn.Module(), graph)


def test_equal_messages_have_different_tags():
    gm = graph_with_asserts()
    assert [(a.message, a.raises) for a in asserts_of(gm)] == [("too small", IndexError), ("too small", RuntimeError)]
    messages = [node.args[1] for node in gm.graph.nodes if "message" in node.meta]
    assert messages == ["too small [treadle assert 0]", "too small [treadle assert 1]"]
    tag_asserts(gm.graph)
    assert [node.args[1] for node in gm.graph.nodes if "message" in node.meta] == messages


@pytest.mark.parametrize(("value", "kind"), [(-1, IndexError), (-7, IndexError)])
def test_the_exception_of_the_program_without_the_tag(value, kind):
    gm = graph_with_asserts()
    run = raising_as_program(gm.forward, asserts_of(gm))
    assert run(torch.tensor(1))[0] == 2
    with pytest.raises(kind) as caught:
        run(torch.tensor(value))
    assert type(caught.value) is kind and str(caught.value) == "too small"


def test_a_typed_exception_and_no_random_numbers_drawn():
    gm = graph_with_asserts()

    def draws(x):
        torch.rand(3)
        return gm.forward(x)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    with pytest.raises(AssertFailed) as caught:
        raising_typed(draws, asserts_of(gm))(torch.tensor(-1))
    assert (caught.value.message, caught.value.raises, str(caught.value)) == ("too small", IndexError, "too small")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_backend_may_say_more():
    asserts = asserts_of(graph_with_asserts())
    assert failed_assert(RuntimeError("node 3: too small [treadle assert 1]\nwhile executing"), asserts) is asserts[1]


@pytest.mark.parametrize(
    "error", [RuntimeError("too small"), RuntimeError("x [treadle assert 2]"), IndexError("too small")]
)
def test_other_exceptions_pass(error):
    asserts = asserts_of(graph_with_asserts())

    def raises():
        raise error

    for wrap in (raising_as_program, raising_typed):
        with pytest.raises(type(error)) as caught:
            wrap(raises, asserts)()
        assert caught.value is error


def test_graphs_without_asserts():
    assert asserts_of(None) == () == asserts_of(fx.symbolic_trace(lambda x: x + 1))
