"""Compilations that changing sizes and ints cost: two each, unless something depends on the size; always with eager's results."""

from __future__ import annotations

import pytest
import torch

import treadle_frame
from treadle_shapes.torch import raw_expr
from treadle_tracer.compile import compile_handler
from treadle_tracer.options import TracerOptions
from treadle_tracer.output.size_one import why_graph_differs


class Recorder:
    """A backend that counts and runs the graph as it is."""

    def __init__(self):
        self.graphs = []

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)
        return gm.forward


def compiled(function):
    recorder = Recorder()
    handler = compile_handler(recorder, TracerOptions(raise_internal_errors=True))
    handler.add_root(function.__code__)
    return treadle_frame.dispatcher(function, handler), recorder


def graphs_over(function, make, sizes):
    """Graphs that a sequence of sizes costs; every result must have eager's values, sizes and strides."""
    treadle_frame.reset(function.__code__)
    fast, recorder = compiled(function)
    for size in sizes:
        args = make(size)
        expected = function(*(arg.clone() for arg in args))
        found = fast(*args)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    return len(recorder.graphs)


def rows(n):
    return (torch.randn(n, 8),)


def pointwise(x):
    return torch.relu(x) * 2 + 1


def views(x):
    return x.view(x.shape[0], 2, 4).transpose(1, 2).reshape(x.shape[0], 8)


def product(x):
    return x @ x.t()


def centred(x):
    return x - x.mean(0, keepdim=True)


def repeated(x):
    return x.unsqueeze(1).expand(x.shape[0], 3, 8).reshape(-1, 8) + 1


@pytest.mark.parametrize("function", [pointwise, views, product, centred, repeated])
@pytest.mark.parametrize("sizes", [(4, 5, 6, 1, 7, 1), (4, 1, 5, 1), (1, 4, 1, 5)])
def test_a_size_of_1_costs_no_further_compile(function, sizes):
    assert graphs_over(function, rows, sizes) == 2


def test_a_size_of_0_is_right():
    assert graphs_over(pointwise, rows, (4, 0, 5, 0, 1)) == 3


def squeezed(x):
    return x.squeeze(0) * 2


def branches(x):
    return x * 2 if x.shape[0] == 1 else x * 3


def asks_layout(x):
    return x * 2 if x.t().is_contiguous() else x * 3


def asks_stride(x):
    return x * x.t().contiguous().stride(1)


def writes_into_a_copy(x):
    y = x.t().contiguous()  # at a size of 1 this is x itself
    y.add_(1)
    return x * 1 + y.sum()


def compares_sizes(x):
    return x * 2 if torch.is_same_size(x, torch.ones(1, 8)) else x * 3


@pytest.mark.parametrize("function", [squeezed, branches, asks_layout, asks_stride, compares_sizes, writes_into_a_copy])
def test_a_size_of_1_is_compiled_anew_where_something_depends_on_it(function):
    assert graphs_over(function, lambda n: (torch.ones(n, 8),), (4, 5, 6, 1, 7, 1)) == 3
    assert graphs_over(function, lambda n: (torch.ones(n, 8),), (4, 1, 5, 1)) == 3


def test_writes_show_outside_at_every_size():
    def f(x):
        return writes_into_a_copy(x)

    fast, _ = compiled(f)
    for n in (4, 5, 1, 6, 1):
        x, y = torch.ones(n, 8), torch.ones(n, 8)
        assert torch.equal(fast(x), writes_into_a_copy(y))
        assert torch.equal(x, y)


def test_dropout_that_drops_nothing_is_its_argument():
    def f(x):
        y = x * 2
        z = torch.nn.functional.dropout(y, 0.3, False)
        z.add_(1)
        return y * 1

    assert graphs_over(f, rows, (4, 5, 1, 6)) == 2


def test_several_sizes_of_1_are_admitted_one_by_one():
    def two(x, y):
        return x.unsqueeze(1) + y.unsqueeze(0)

    fast, recorder = compiled(two)
    for n, m in [(4, 3), (5, 6), (1, 7), (7, 1), (1, 1), (2, 1), (1, 2)]:
        x, y = torch.randn(n, 2), torch.randn(m, 2)
        assert torch.equal(fast(x, y), two(x, y))
    assert len(recorder.graphs) == 2


def test_parts_of_larger_tensors():
    assert graphs_over(pointwise, lambda n: (torch.randn(n, 20)[:, :8],), (4, 5, 6, 1)) == 2
    assert graphs_over(pointwise, lambda n: (torch.randn(3, 20)[:, :n],), (4, 5, 6, 7)) == 2


def test_the_replay_names_the_call_that_differs():
    def f(x):
        return x.squeeze(0) * 2

    fast, recorder = compiled(f)
    for n in (3, 4):
        fast(torch.ones(n, 2))
    graph = recorder.graphs[-1]
    (placeholder,) = [node for node in graph.graph.nodes if node.op == "placeholder"]
    symbol = raw_expr(placeholder.meta["example_value"].shape[0])
    assert why_graph_differs(graph, [torch.ones(5, 2)], {symbol: 5}) is None
    assert "squeeze" in why_graph_differs(graph, [torch.ones(1, 2)], {symbol: 1})


# ---- ints


def test_an_int_that_changes_becomes_a_symbol():
    def scaled(x, n):
        return x * n + x[:n].sum(), n // 2, x.new_zeros(n + 1)

    fast, recorder = compiled(scaled)
    for n in (2, 3, 4, 5, 1, 0, 8):
        x = torch.randn(9)
        for found, expected in zip(fast(x, n), scaled(x, n), strict=True):
            assert type(found) is type(expected)
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))
            assert torch.as_tensor(found).dtype == torch.as_tensor(expected).dtype
    assert len(recorder.graphs) == 2


def test_branches_on_an_int_are_guarded():
    def chooses(x, n):
        return x + n if n > 4 else x - n

    fast, recorder = compiled(chooses)
    x = torch.ones(3)
    for n in (1, 2, 3, 9, 8, 4, 7):
        assert torch.equal(fast(x, n), chooses(x, n))
    assert len(recorder.graphs) == 3


def test_ints_and_what_only_looks_like_one():
    def scaled(x, n):
        return x * n

    fast, _ = compiled(scaled)
    x = torch.arange(3)
    for n in (2, 3, 4, True, 2.5, 2**40, 5):
        found, expected = fast(x, n), scaled(x, n)
        assert torch.equal(found, expected) and found.dtype == expected.dtype


def test_an_int_that_must_be_known_is_compiled_as_before():
    def looped(x, n):
        for i in range(n):
            x = x + i
        return x.softmax(n % 2)

    fast, _ = compiled(looped)
    for n in (1, 2, 3, 4):
        x = torch.randn(2, 3)
        assert torch.equal(fast(x, n), looped(x, n))


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def test_a_counter_does_not_recompile_for_ever():
    ours, theirs = Counter(), Counter()
    fast, recorder = compiled(ours.forward.__func__)
    x = torch.ones(3)
    for _ in range(6):
        assert torch.equal(fast(ours, x), theirs(x))
    assert ours.calls == theirs.calls == 6
    assert len(recorder.graphs) == 2


def test_tensors_of_one_text_have_sizes_of_their_own():
    """Keys that are objects are written as `<Key>`, as the parameters in the state of an optimizer are."""

    class Key:
        pass

    table = {Key(): torch.ones(3, 2), Key(): torch.ones(4, 5), Key(): torch.ones(4, 5)}

    def function(x):
        return x + sum(value.sum() * value.shape[0] for value in table.values())

    recorder = Recorder()
    handler = compile_handler(recorder, TracerOptions(raise_internal_errors=True, dynamic=True))
    handler.add_root(function.__code__)
    fast = treadle_frame.dispatcher(function, handler)
    for first, second in ((3, 4), (5, 6), (6, 6)):
        for key, rows in zip(table, (first, second, second), strict=True):
            table[key] = torch.randn(rows, 2 * rows)
        x = torch.randn(2)
        assert torch.allclose(fast(x), function(x))
    assert len(recorder.graphs) == 1
