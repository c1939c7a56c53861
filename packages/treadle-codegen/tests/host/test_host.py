"""The host function's text and behaviour: what is decided once, what on every call, and what a call leaves behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from dynamic_cases import compile_dynamic

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph
from treadle_codegen.errors import InternalError
from treadle_codegen.host.externs import callee_of, callee_of_call, needs_schema_call
from treadle_codegen.host.sizes import SizeTexts, comparing, plain_text, reading, sources_of
from treadle_codegen.ir.loops import Buffer, BufferKind, Extern, Program, View
from treadle_shapes.expr import symbol

aten = torch.ops.aten


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def compiled(fn: Callable[..., Any], *inputs: torch.Tensor, cache: Path, static: tuple[int, ...] = ()) -> CompiledGraph:
    options = CodegenOptions(cache_dir=cache, threads=1, pack_weights=False)
    return compile_graph(capture(fn, inputs, static), list(inputs), options=options)


def test_a_static_graph_reads_no_sizes(cache: Path) -> None:
    graph = compiled(lambda x: x + 1, torch.ones(8), cache=cache)
    assert "size(" not in graph.host_source and "refit" not in graph.host_source and ".shape" not in graph.host_source


def test_kernels_without_an_extern_in_between_are_one_call(cache: Path) -> None:
    graph = compiled(lambda x: (x.sum(), x.sum(0), x * 2), torch.ones(8, 8), cache=cache)
    assert len(graph.kernels) > 1 and graph.host_source.count("w.argument") == 1


def test_a_dynamic_graph_compares_one_shape(cache: Path) -> None:
    graph = compile_dynamic(lambda x: x.softmax(-1) * 2, lambda n, c: [(n, c)], (6, 37), cache)
    run = graph.host_source[: graph.host_source.index("def read_sizes")]
    assert run.count("a0.shape") == 1 and "size(" not in run
    graph(torch.randn(6, 37))
    graph(torch.randn(5, 11))
    torch.testing.assert_close(graph(torch.ones(2, 4))[0], torch.full((2, 4), 0.5))


def test_externs_get_static_tensors_without_elements(cache: Path) -> None:
    # Their memory is at 0, where static tensors that have not been looked at were taken to be.
    places = torch.empty(0, dtype=torch.int64)
    graph = compiled(lambda at: aten.sort(at)[1], places, cache=cache, static=(0,))
    for _ in range(2):
        assert graph(places)[0].shape == (0,)


def test_memory_of_externs_is_released_after_the_last_use(cache: Path) -> None:
    graph = compiled(lambda x: x.sort(0).values.exp().sort(0).values + 1, torch.ones(9), cache=cache)
    assert len(re.findall(r"^    (t\d+ = )+None$", graph.host_source, re.M)) == 2


def test_results_of_externs_get_the_planned_strides(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 4)
    graph = compiled(lambda x: x.sort(1).values, x, cache=cache)
    (position,) = re.findall(r"= c\[(\d+)\]\(", graph.host_source)
    constants = graph._host.run.__globals__["c"]
    sort = constants[int(position)]
    constants[int(position)] = lambda *a: tuple(r.t().contiguous().t() for r in sort(*a))
    (y,) = graph(x)
    assert y.stride() == (4, 1) and torch.equal(y, x.sort(1).values)


@pytest.mark.parametrize("wrong", [lambda r: r.double(), lambda r: r[:2], lambda r: torch.cat([r, r])])
def test_results_of_externs_that_the_plan_cannot_take_raise(
    cache: Path, wrong: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """A fake kernel may be wrong; nothing is read as another dtype, or behind the result."""
    x = torch.randn(3, 4)
    graph = compiled(lambda x: x.sort(1).values * 2, x, cache=cache)
    (position,) = re.findall(r"= c\[(\d+)\]\(", graph.host_source)
    constants = graph._host.run.__globals__["c"]
    sort = constants[int(position)]
    constants[int(position)] = lambda *a: tuple(map(wrong, sort(*a)))
    with pytest.raises(InternalError, match="planned was"):
        graph(x)


def test_strides_that_differ_at_sizes_of_one_cost_no_copy(cache: Path) -> None:
    host = compiled(lambda x: x + 1, torch.ones(3), cache=cache)._host
    x = torch.empty_strided((1, 3), (99, 1))
    assert host.with_layout(x, (1, 3), (3, 1), torch.float32).data_ptr() == x.data_ptr()
    assert host.with_layout(x, (1, 3), (6, 2), torch.float32).data_ptr() != x.data_ptr()


def test_parameters_and_constants_are_never_handed_out(cache: Path) -> None:
    weight = torch.randn(3)
    result = compiled(lambda x, w: (x + w, w), torch.ones(3), weight, cache=cache, static=(1,))(torch.ones(3), weight)
    assert torch.equal(result[1], weight) and result[1].data_ptr() != weight.data_ptr()


def test_a_failing_call_gives_its_workspace_back(cache: Path) -> None:
    table = torch.randn(4, 3)
    graph = compiled(lambda t, i: F.embedding(i, t), table, torch.tensor([0]), cache=cache)
    graph(table, torch.tensor([1]))
    (workspace,) = graph._host.free
    with pytest.raises(IndexError, match="out of range"):
        graph(table, torch.tensor([9]))
    assert graph._host.free == [workspace] and workspace.error.value == 0


def test_a_call_inside_a_call_has_a_workspace_of_its_own(cache: Path) -> None:
    x = torch.randn(6, 6)
    graph = compiled(lambda x: ((x + 1) @ x).relu() @ x, x, cache=cache)
    workspace = graph._host.planner.new()
    assert workspace is not graph._host.planner.new()
    graph(x)
    graph(x)
    assert len(graph._host.free) == 1


# -- sizes


def test_numbers_made_of_sizes_are_named_once() -> None:
    n, u = symbol("s0"), symbol("u0")
    sizes = SizeTexts(frozenset({n}))
    assert sizes.number(n) == "s0"
    assert sizes.tuple_of((n * 2, 8)) == "k1" and sizes.tuple_of((n * 2, 8)) == "k1"
    assert sizes.number(u + n) == plain_text(u + n)  # known during the call only
    assert sizes.tuple_of((4, 8)) == "(4, 8, )"
    assert sizes.in_order() == (n,) and not sizes.covers(u) and not sizes.covers(3)


def test_as_few_inputs_as_possible_are_asked() -> None:
    a, b = symbol("a"), symbol("b")
    buffers = {
        "x": Buffer("x", torch.float32, (a,), (1,), BufferKind.INPUT),
        "y": Buffer("y", torch.float32, (b, a), (a, 1), BufferKind.INPUT),
    }
    sources = sources_of(Program(buffers, ("x", "y"), (), [], (a, b)), (a, b))
    assert sources == {a: (1, "shape", 1), b: (1, "shape", 0)}
    assert reading(sources[a]) == "a1.size(1)" and comparing(sources[a]) == "a1.shape"
    assert reading((0, "stride", 1)) == "a0.stride(1)" and comparing((2, "", 0)) == "a2"
    with pytest.raises(ValueError, match="no input has a size or stride u9"):
        sources_of(Program(buffers, ("x", "y"), (), [], ()), (symbol("u9"),))


def test_sizes_that_symbols_follow_from() -> None:
    a, b, n = symbol("a"), symbol("b"), symbol("n")
    buffers = {
        "x": Buffer("x", torch.float32, (a * 2 - b + n + 8,), (1,), BufferKind.INPUT),
        "y": Buffer("y", torch.float32, (b + 1, 4), (4, 1), BufferKind.INPUT),
    }
    sources = sources_of(Program(buffers, ("n", "x", "y"), (), [], (a, b, n)), (a, b, n))
    x, y = torch.ones(2 * 5 - 3 + 7 + 8), torch.ones(3 + 1, 4)
    for unknown, value in ((a, 5), (b, 3), (n, 7)):
        assert eval(reading(sources[unknown]), {"a0": 7, "a1": x, "a2": y}) == value
        assert comparing(sources[unknown]) == reading(sources[unknown])
    with pytest.raises(ValueError, match="no input has a size or stride b, n"):
        sources_of(Program({"x": buffers["x"]}, ("x",), (), [], ()), (b, n))


# -- externs


def test_what_the_host_calls_for_an_extern() -> None:
    product, sort = aten.mm.out, aten.sort.default
    assert callee_of(product, {}) is torch.mm and not needs_schema_call(product, {})
    assert callee_of(sort, {}) is aten.sort.default and needs_schema_call(sort, {})

    def better(*args: Any, **kwargs: Any) -> None:
        pass

    only, one_of_two = aten.mv.default, aten.sum.default
    assert callee_of(only, {}) is torch.mv and needs_schema_call(only, {})
    assert callee_of(one_of_two, {}) is one_of_two
    replaced = {"aten.mm.out": better}
    assert callee_of(product, replaced) is better and needs_schema_call(product, replaced)


def test_a_transposed_matrix_is_made_by_its_own_method(cache: Path) -> None:
    x, w = torch.randn(5, 80), torch.randn(7, 80)
    graph = compiled(lambda x, w: (x @ w.t()).relu(), x, w, cache=cache)
    assert "a1.t()" in graph.host_source and "as_strided" not in graph.host_source
    torch.testing.assert_close(graph(x, w)[0], (x @ w.t()).relu())
    part = compiled(lambda x, w: (x[:, 1:] @ w[:, :79].t()).relu(), x, w, cache=cache)
    assert "as_strided" in part.host_source
    torch.testing.assert_close(part(x, w)[0], (x[:, 1:] @ w[:, :79].t()).relu())


def test_results_are_allocated_as_they_are_returned(cache: Path) -> None:
    x = torch.randn(4, 8)
    graph = compiled(lambda x: (x.sum(0, keepdim=True).view(8), (x + 1).t(), x.exp()), x, cache=cache)
    assert "as_strided" not in graph.host_source and ".t()" not in graph.host_source
    for _ in range(2):
        torch.testing.assert_close(tuple(graph(x)), (x.sum(0), (x + 1).t(), x.exp()))
    assert [result.stride() for result in graph(x)] == [(1,), (1, 8), (8, 1)]


def test_results_of_the_same_values_are_made_one_by_one(cache: Path) -> None:
    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sum(0, keepdim=True)
        return y.view(8), y, y[:, 2:]

    x = torch.randn(4, 8)
    found = tuple(compiled(several, x, cache=cache)(x))
    torch.testing.assert_close(found, several(x))
    assert [result.stride() for result in found] == [result.stride() for result in several(x)]


def test_results_that_operators_take_keep_their_own_layout(cache: Path) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sum(0, keepdim=True) + 1
        return y.view(8), y.sort(-1).values

    x = torch.randn(4, 8)
    torch.testing.assert_close(tuple(compiled(f, x, cache=cache)(x)), f(x))


def test_results_of_sizes_that_change_are_allocated_as_they_are_returned(cache: Path) -> None:
    graph = compile_dynamic(lambda x: (x + 1).view(-1), lambda n, c: [(n, c)], (6, 37), cache)
    for shape in ((6, 37), (5, 11), (1, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(graph(x)[0], (x + 1).view(-1))


def test_a_binding_of_several_overloads_serves_where_it_chooses_the_operator() -> None:
    buffers = {"x": Buffer("x", torch.float32, (4, 5), (5, 1), BufferKind.INPUT)}
    view = View("x", (4, 5), (5, 1))
    largest = Extern("e", aten.max.dim, (view, 1), {}, ("", ""), False, ())
    assert callee_of(aten.max.dim, {}) is aten.max.dim
    assert callee_of_call(largest, buffers, {}) is torch.max
    one_added = Extern("e", aten.add.Scalar, (view, 1), {}, ("",), False, ())  # the binding adds a tensor
    assert callee_of_call(one_added, buffers, {}) is aten.add.Scalar
