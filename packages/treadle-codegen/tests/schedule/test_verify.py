"""The contract of fusion: what `fuse` makes obeys it, and every planted fault is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from aten_capture import capture

from treadle_codegen.ir.loops import BufferKind, Instr, Load, Loop, Program
from treadle_codegen.ir.text import parse_program
from treadle_codegen.lower import lower_graph
from treadle_codegen.schedule.fuse import Node, fuse
from treadle_codegen.schedule.kernel import Kernel, LocalBuffer
from treadle_codegen.schedule.verify import verify_schedule
from treadle_shapes.expr import Symbol

Schedule = tuple[Program, list[Node]]


def schedule() -> Schedule:
    """Kernel, product, kernel; the last one with a row that stays inside and three sections."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x + 1) @ x, -1) * 2

    program = lower_graph(capture(fn, [torch.randn(6, 6)]))
    return program, fuse(program)


def kernels(nodes: list[Node]) -> list[Kernel]:
    return [node.item for node in nodes if isinstance(node.item, Kernel)]


def test_what_fuse_makes_is_valid() -> None:
    program, nodes = schedule()
    assert verify_schedule(program, nodes) == []
    assert [type(node.item).__name__ for node in nodes] == ["Kernel", "Extern", "Kernel"]
    assert len(kernels(nodes)[1].sections) == 3 and kernels(nodes)[1].locals


def _change(loop: Loop, old: str, change: Callable[[Any], Any]) -> Loop:
    """The loop with the index of its loads of the buffer changed."""
    body = tuple(
        Instr(i.op, i.args, i.dtype, Load(i.attr.buffer, change(i.attr.index)))
        if i.op == "load" and i.attr.buffer == old
        else i
        for i in loop.body
    )
    return replace(loop, body=body)


def _put(kernel: Kernel, section: int, member: int, loop: Loop) -> None:
    old = kernel.sections[section].members[member]
    kernel.sections[section].members[member] = loop
    kernel.loops[kernel.loops.index(old)] = loop


def missing(program: Program, nodes: list[Node]) -> None:
    nodes.pop(1)


def twice(program: Program, nodes: list[Node]) -> None:
    nodes.append(nodes[1])


def foreign(program: Program, nodes: list[Node]) -> None:
    program.steps = program.steps[:-1]


def out_of_order(program: Program, nodes: list[Node]) -> None:
    nodes.reverse()


def order_in_kernel(program: Program, nodes: list[Node]) -> None:
    kernels(nodes)[1].loops.reverse()


def silent_read(program: Program, nodes: list[Node]) -> None:
    nodes[2].reads.clear()


def silent_write(program: Program, nodes: list[Node]) -> None:
    nodes[0].writes.clear()


def section_without_member(program: Program, nodes: list[Node]) -> None:
    kernels(nodes)[1].sections[0].members.clear()


def other_axes(program: Program, nodes: list[Node]) -> None:
    section = kernels(nodes)[1].sections[0]
    section.axes = (replace(section.axes[0], extent=5),)


def fewer_points(program: Program, nodes: list[Node]) -> None:
    kernel = kernels(nodes)[0]
    (section,), (axis,) = kernel.sections, kernel.sections[0].axes
    section.axes = (replace(axis, extent=35),)
    _put(kernel, 0, 0, replace(section.members[0], axes=section.axes))


def same_section(program: Program, nodes: list[Node]) -> None:
    """The exponentials read the maximum in the section that computes it."""
    kernel = kernels(nodes)[1]
    kernel.sections[0].members.extend(kernel.sections.pop(1).members)


def other_point(program: Program, nodes: list[Node]) -> None:
    """The sum reads the exponential of a neighbour that its own section has not written yet."""
    kernel = kernels(nodes)[1]
    exponential = next(n for n, local in kernel.locals.items() if local.is_row)
    for k, section in enumerate(kernel.sections):
        for m, loop in enumerate(section.members):
            if loop.reduce_axes and any(i.op == "load" and i.attr.buffer == exponential for i in loop.body):
                _put(kernel, k, m, _change(loop, exponential, lambda index: index + 1))


def other_row(program: Program, nodes: list[Node]) -> None:
    """The last section reads the row of exponentials at twice the outer point."""
    kernel = kernels(nodes)[1]
    exponential = next(n for n, local in kernel.locals.items() if local.is_row)
    o0: Symbol = kernel.outer[0].symbol
    last = len(kernel.sections) - 1
    _put(kernel, last, 0, _change(kernel.sections[last].members[0], exponential, lambda index: index + 6 * o0))


def local_output(program: Program, nodes: list[Node]) -> None:
    (name,) = (out.buffer for out in program.outputs)
    assert program.buffers[name].kind is BufferKind.OUTPUT
    kernels(nodes)[1].locals[name] = LocalBuffer(6, 0)


def local_shared(program: Program, nodes: list[Node]) -> None:
    (name,) = (n for n in nodes[0].writes)
    kernels(nodes)[0].locals[name] = LocalBuffer(36, 0)


def local_of_unknown_length(program: Program, nodes: list[Node]) -> None:
    kernel = kernels(nodes)[1]
    name = next(iter(kernel.locals))
    kernel.locals[name] = replace(kernel.locals[name], length=kernel.outer[0].symbol + 1)


FAULTS: dict[Callable[[Program, list[Node]], None], str] = {
    missing: "is missing",
    twice: "twice",
    foreign: "no step of the program",
    out_of_order: "which runs later",
    order_in_kernel: "which runs later",
    silent_read: "does not say that it reads",
    silent_write: "does not say that it writes",
    section_without_member: "not each of its loops once",
    other_axes: "other axes than its section",
    fewer_points: "another number of points",
    same_section: "still reduces",
    other_point: "at another point than its section",
    other_row: "at another outer point",
    local_output: "is no temporary",
    local_shared: "another node touches it",
    local_of_unknown_length: "known only at run time",
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_faults_are_found(plant: Callable[[Program, list[Node]], None]) -> None:
    program, nodes = schedule()
    plant(program, nodes)
    problems = verify_schedule(program, nodes)
    assert any(FAULTS[plant] in problem for problem in problems), problems


def test_a_read_at_a_place_that_is_data_is_found() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (x + 1).sum(0, keepdim=True) + x

    program = lower_graph(capture(fn, [torch.randn(4, 4), torch.tensor([1])]))
    nodes = fuse(program)
    kernel = next(k for k in kernels(nodes))
    written = next(i.attr.buffer for i in kernel.loops[0].body if i.op == "store")
    body = (
        Instr("const", (), torch.int64, 0),
        Instr("indirect_load", (0,), torch.float32, (written, (1,), (4,))),
    )
    late = Loop("late", kernel.outer, (), body)
    kernel.loops.append(late)
    kernel.sections.append(type(kernel.sections[0])((), [late]))
    assert any("at a place that is data" in problem for problem in verify_schedule(program, nodes))


def test_numbers_known_at_run_time_keep_their_order() -> None:
    text = """\
program inputs x outputs view(out, [u0], [1], 0)
runtime u0 0 None
input x : float32 [4] strides [1] offset 0
temp t : int64 [u0, 1] strides [1, 1] offset 0
output out : float32 [u0] strides [1] offset 0
extern find aten.nonzero.default (view(x, [4], [1], 0), ) {} -> t origins a
  bind u0 0 0 1 'x'
loop fill [i0:u0] reduce [] origins b
  %0 = const 1.0 : float32
  %1 = store out[i0] %0 : float32
"""
    program = parse_program(text)
    nodes = fuse(program)
    assert verify_schedule(program, nodes) == []
    nodes.reverse()
    assert verify_schedule(program, nodes) == ["fill depends on find, which runs later"]
