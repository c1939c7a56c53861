"""Which loops share a kernel, which do not and why, and which temporaries stay inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen.costs import Costs
from treadle_codegen.ir.loops import Axis, Extern
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule import fuse as fuse_module
from treadle_codegen.schedule.access import accumulates
from treadle_codegen.schedule.fuse import Node, fuse, why_not_candidate, why_not_move, why_not_serial
from treadle_codegen.schedule.kernel import OUTER_SYMBOLS, Kernel
from treadle_codegen.schedule.verify import verify_schedule


def nodes_of(fn: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> list[Node]:
    program = lower_graph(capture(fn, inputs))
    nodes = fuse(program, **options)
    assert verify_schedule(program, nodes) == []
    return nodes


def shape_of(nodes: list[Node]) -> list[int | str]:
    """How many loops each kernel has; the name of the operator for others."""
    return [len(n.item.loops) if isinstance(n.item, Kernel) else n.item.op._schema.name for n in nodes]  # type: ignore[union-attr]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


X = torch.randn(32, 48)


def test_a_softmax_is_one_kernel_whose_row_stays_inside() -> None:
    (node,) = nodes_of(softmax, X)
    kernel = node.item
    assert isinstance(kernel, Kernel) and len(kernel.sections) == 3
    assert sorted(local.length for local in kernel.locals.values()) == [1, 1, 48]
    assert node.writes == {"_softmax_default_2"} and node.reads == {"arg0"}


def test_independent_loops_over_the_same_data_share_a_kernel() -> None:
    assert shape_of(nodes_of(lambda x: (x.sum(1), x.amax(1)), X)) == [2]
    assert shape_of(nodes_of(lambda x: (x.sum(1), x.amax(0)), X)) == [1, 1]


def test_large_reductions_share_a_kernel_only_for_most_of_what_they_read() -> None:
    def products(scale: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (a * scale).sum(0), (b * scale).sum(0)

    def moments(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (a * b).sum(0), a.sum(0)

    small, large = [torch.randn(64, 64) for _ in range(2)], [torch.randn(1024, 512) for _ in range(2)]
    assert shape_of(nodes_of(products, torch.randn(64, 1), *small)) == [2]
    assert shape_of(nodes_of(products, torch.randn(1024, 1), *large)) == [1, 1]
    assert shape_of(nodes_of(moments, *large)) == [2]


def test_sums_of_rows_and_of_columns_are_kernels_of_their_own() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), x.sum(1), x.amax(0), x.amax(1), x.abs().sum(1)

    columns, rows = nodes_of(fn, torch.randn(100, 100))
    assert len(columns.item.loops) == 2 and len(rows.item.loops) == 3
    assert len(nodes_of(fn, torch.randn(8, 8))) == 1


def test_a_kernel_moves_behind_an_extern_that_does_not_need_it() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.exp().sum(1)
        product = x @ x.t()
        return total * 2 + 1, product

    assert shape_of(nodes_of(fn, X)) in (["aten::mm", 2], [2, "aten::mm"])


def test_limits_of_fusion() -> None:
    assert shape_of(nodes_of(softmax, X, max_members=1)) == [1] * 4
    assert shape_of(nodes_of(softmax, X, max_members=2)) == [2, 2]
    assert len(nodes_of(softmax, X, costs=Costs(fusion_window=0))) == 4


def test_a_row_longer_than_allowed_stays_in_memory() -> None:
    (node,) = nodes_of(softmax, X, max_row_bytes=47 * 4)
    assert isinstance(node.item, Kernel)
    assert [local.length for local in node.item.locals.values()] == [1, 1]
    assert "_softmax_default_0" in node.writes


def test_with_several_workers_a_shared_outer_axis_remains() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sum(1, keepdim=True) * 2).sum()

    large = torch.randn(1 << 15, 2)
    alone = nodes_of(fn, large)
    assert all(isinstance(node.item, Kernel) for node in alone)
    assert len(nodes_of(fn, large, parallel=True)) >= len(alone)


def test_reasons_are_kept_by_the_loop_that_did_not_join() -> None:
    nodes = nodes_of(lambda x: (x.sum(1), x.amax(0)), X)
    assert list(nodes[0].reasons.values()) == ["the reduction's own axes are deeper than the shared outer axes"]


def test_why_nothing_joins_a_node() -> None:
    (node,) = nodes_of(softmax, X)
    assert why_not_candidate(node, 48) is None
    assert why_not_candidate(node, 4) == "the kernel has as many loops as allowed"
    assert why_not_candidate(replace(node, fusable=False), 48) is not None
    sort = next(n for n in nodes_of(lambda x: x.sort(), X) if isinstance(n.item, Extern))
    assert why_not_candidate(sort, 48) is not None


def test_why_a_node_cannot_move() -> None:
    (node,) = nodes_of(softmax, X)
    a, b = replace(node, reads={"x"}, writes={"t"}), replace(node, reads={"t"}, writes={"u"})
    apart = replace(node, reads={"x"}, writes={"u"})
    assert why_not_move([a, b], 0, 1) is not None and why_not_move([a, apart], 0, 1) is None
    assert why_not_move([b, a], 0, 1) == "a step in between overwrites what the kernel reads"
    assert why_not_move([a, replace(a, reads=set())], 0, 1) is not None  # both write it


def test_why_a_kernel_should_keep_an_outer_axis() -> None:
    (node,) = nodes_of(lambda x: x + 1, X)
    assert isinstance(node.item, Kernel) and not node.item.outer
    enough, too_few = Costs(max_serial=32 * 48), Costs(max_serial=32 * 48 - 1)
    assert why_not_serial(node.item, 32, enough) is None and why_not_serial(node.item, 32, too_few) is not None
    assert why_not_serial(node.item, 1, too_few) is None  # there were no workers to lose
    some = replace(node.item, outer=(Axis(OUTER_SYMBOLS[0], 8),))
    assert why_not_serial(some, 32, too_few) is None
    assert why_not_serial(some, 32, replace(too_few, min_parallel=16)) is not None


def test_scattering_loops_stand_alone() -> None:
    index = torch.tensor([1, 5, 3])
    nodes = nodes_of(lambda x, i, y: x.index_add(0, i, y * 2) + 1, X, index, torch.randn(3, 48))
    kernels = [node.item for node in nodes if isinstance(node.item, Kernel)]
    scattering = [kernel for kernel in kernels if any(accumulates(loop) for loop in kernel.loops)]
    assert all(len(kernel.loops) == 1 for kernel in scattering) and len(kernels) > len(scattering)


def test_a_buffer_that_two_kernels_write_stays_in_memory() -> None:
    nodes = nodes_of(
        lambda x, y: (torch.relu(torch.cat([x, x * 2])[1:]), torch.relu(x), torch.relu(y)),
        torch.randn(1),
        torch.randn(1),
    )
    for node in nodes:
        assert isinstance(node.item, Kernel)
        for name in node.item.locals:
            assert not any(name in other.writes for other in nodes if other is not node)


def _two_rounds(x: torch.Tensor, scale: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """Kernels that read nothing of each other, then loops that join them and are moved."""
    sums = [(x[k] * scale).cumsum(0) for k in range(steps)]
    rows = [(x[k] + scale).exp() for k in range(steps)]
    return [a.sum() + (b * a).amax() for a, b in zip(sums, rows, strict=True)]


def test_the_last_writer_of_a_buffer_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    original, answers = fuse_module._Nodes.last_writer, []

    def checked(self: Any, names: Any) -> int:
        names = set(names)
        expected = max((k for k, node in enumerate(self) if node.writes & names), default=-1)
        answers.append(expected)
        assert original(self, names) == expected
        return expected

    monkeypatch.setattr(fuse_module._Nodes, "last_writer", checked)
    nodes_of(lambda x, s: _two_rounds(x, s, 12), torch.randn(12, 40), torch.randn(40))
    nodes_of(lambda x: [x.softmax(k).sum(1) for k in (0, 1)], X)
    assert len(set(answers)) > 8


def test_fusing_many_loops_takes_time_that_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    original = fuse_module._Nodes.__getitem__
    monkeypatch.setattr(
        fuse_module._Nodes, "__getitem__", lambda self, k: looked_at.append(k) or original(self, k), raising=False
    )
    counts = []
    for steps in (100, 200):
        looked_at.clear()
        nodes_of(lambda x, s, steps=steps: _two_rounds(x, s, steps), torch.randn(steps, 40), torch.randn(40))
        counts.append(len(looked_at))
    assert counts[1] <= 2.2 * counts[0]
