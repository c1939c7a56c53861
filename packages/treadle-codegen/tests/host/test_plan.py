"""Execution plans: segments, slots, lifetimes; and every planted fault is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions
from treadle_codegen.host.plan import ExecutionPlan, last_uses, lifetimes, make_plan, verify_plan
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.fuse import fuse
from treadle_codegen.targets.cpp.renderer import CppRenderer
from treadle_shapes.expr import symbol


def plan_of(fn: Callable[..., object], *inputs: torch.Tensor) -> ExecutionPlan:
    program = lower_graph(capture(fn, inputs))
    return make_plan(program, fuse(program), CppRenderer(CodegenOptions(threads=1)))


def chain(x: torch.Tensor) -> torch.Tensor:
    return ((x + 1) @ (x * 2)).relu().softmax(-1) @ x


def test_kernels_between_externs_are_one_segment() -> None:
    plan = plan_of(chain, torch.randn(20, 20))
    assert verify_plan(plan) == []
    assert [segment.name for segment in plan.segments] == ["segment_0", "segment_1"]
    assert sorted(plan.segment_at) == [0, len(plan.segments[0].kernels) + 1]  # the first product stands in between


def test_every_buffer_and_number_that_kernels_take_has_a_slot() -> None:
    plan = plan_of(chain, torch.randn(20, 20))
    taken = {name for segment in plan.segments for kernel in segment.kernels for name in kernel.buffers}
    assert plan.slots.keys() == taken and 0 not in plan.slots.values()


def test_a_number_that_nothing_defines_is_refused() -> None:
    program = lower_graph(capture(lambda x: x + 1, [torch.randn(3)]))
    nodes = fuse(program)
    renderer = CppRenderer(CodegenOptions(threads=1))
    render = renderer.render_kernel
    renderer.render_kernel = lambda *a: replace(render(*a), numbers=(symbol("s9"),))  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="s9.*which nothing defines"):
        make_plan(program, nodes, renderer)


def test_only_temporaries_of_known_size_that_no_operator_returns_are_planned() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, _ = (x + 1).sort(-1)  # `sort` returns memory of its own
        return (values @ x).relu(), x * 3

    plan = plan_of(fn, torch.randn(9, 9))
    spans = lifetimes(plan)
    kinds = {plan.program.buffers[name].kind.value for name in spans}
    sorted_values = {name for node in plan.nodes for name in getattr(node.item, "outputs", ())}
    assert kinds == {"temp"}
    assert not (spans.keys() & {n for n in sorted_values if "sort" in n})
    assert spans.keys() <= last_uses(plan).keys()
    assert all(last_uses(plan)[name] == last for name, (_, last) in spans.items())


def missing_segment(plan: ExecutionPlan) -> None:
    plan.segment_at.pop(0)


def swapped_segments(plan: ExecutionPlan) -> None:
    plan.segments.reverse()


def two_in_one_slot(plan: ExecutionPlan) -> None:
    first, second, *_ = plan.slots
    plan.slots[second] = plan.slots[first]


def slot_zero(plan: ExecutionPlan) -> None:
    plan.slots[next(iter(plan.slots))] = 0


def no_slot(plan: ExecutionPlan) -> None:
    plan.slots.popitem()


FAULTS = {
    missing_segment: "the segments cover",
    swapped_segments: "another order",
    two_in_one_slot: "are not 1 to",
    slot_zero: "are not 1 to",
    no_slot: "has no slot",
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_faults_are_found(plant: Callable[[ExecutionPlan], None]) -> None:
    plan = plan_of(chain, torch.randn(20, 20))
    plant(plan)
    assert any(FAULTS[plant] in problem for problem in verify_plan(plan)), verify_plan(plan)


@pytest.mark.parametrize(("span", "message"), [((1, 1), "touches it"), ((0, 0), "touches it")])
def test_a_wrong_lifetime_is_found(span: tuple[int, int], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(chain, torch.randn(20, 20))
    spans = lifetimes(plan)
    name = next(n for n, (first, last) in spans.items() if first < last)
    monkeypatch.setattr("treadle_codegen.host.plan.lifetimes", lambda _: {name: span})
    assert any(message in problem for problem in verify_plan(plan))


def test_a_planned_input_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(chain, torch.randn(20, 20))
    monkeypatch.setattr("treadle_codegen.host.plan.lifetimes", lambda _: {"arg0": (0, 99)})
    assert any("is no temporary" in problem for problem in verify_plan(plan))
