"""Small kernels that compute the same on different buffers are launched together: the step of an optimizer over all parameters.

def k_1(b0, b1): x = tl.program_id(0) * XBLOCK + ...; tl.store(b1 + x, ...)         once for each of 100 tensors

def g_2(b0_0, b1_0, b0_1, b1_1, ...):                                               once for up to 16 of them
    program = tl.program_id(0)
    member = (program >= 40).to(tl.int32) + ...                                     whose programs they are
    points = tl.where(member == 1, 999, 40960) ...                                  how many points it has
    b0 = tl.where(member == 1, b0_1, b0_0) ...                                      its buffers
    x = (program - first) * XBLOCK + ...; tl.store(b1 + x, ..., x < points)

Members run beside each other. They write to different buffers, but two inputs may be overlapping parts of one tensor: where memory that one
of them writes overlaps what another one touches, the launcher runs them one after the other, each in a launch of its own (`only`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from treadle_codegen.ir.loops import Axis, Buffer, BufferKind
from treadle_codegen.schedule.access import loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_codegen.targets.renderer import RenderedKernel
from treadle_codegen.targets.triton.body import write_body
from treadle_codegen.targets.triton.body_writer import BodyWriter
from treadle_codegen.targets.triton.tiles import Tiling, is_flat
from treadle_shapes.expr import symbol

MOST_MEMBERS, _MOST_ARGUMENTS = 16, 128
_MOST_POINTS = 1 << 20  # of a member: one with more keeps the device busy long enough to launch the next
_ALIGNED = 16  # points; masks that end at multiples of them do not keep loads from being wide
_TILING = Tiling(1024, (), (), 4)
_POINTS = symbol("points", 0, _MOST_POINTS)
_PROGRAM = "tl.program_id(0)"


@dataclass(frozen=True, slots=True)
class Member:
    """A kernel as the member of a group: its body for any number of points, the parameters of its buffers, how many points it has."""

    kernel: RenderedKernel
    lines: tuple[str, ...]
    params: tuple[str, ...]
    types: tuple[str, ...]
    points: int
    slots: tuple[int, ...]  # of its buffers in the table: an input and its update in place are one
    written: frozenset[int]
    may_overlap: bool  # whether what it writes may overlap other inputs: it is no memory made for the call
    bytes_of_point: tuple[int, ...]  # for each buffer

    @property
    def kind(self) -> tuple[object, ...]:
        """What all members of a group have in common."""
        return self.lines, self.params, self.types, self.points % _ALIGNED == 0

    @property
    def programs(self) -> int:
        return -(-self.points // _TILING.rows)


def why_not_member(kernel: Kernel, rendered: RenderedKernel, buffers: Mapping[str, Buffer]) -> str | None:
    """Why a kernel is launched on its own."""
    if not is_flat(kernel) or len(kernel.sections[0].axes) != 1:
        return "it is no flat space with one axis"
    if f"{_PROGRAM}.to(tl.int64)" in rendered.text:
        return "its buffers need 64-bit indices"
    if rendered.numbers or rendered.checks_bounds or kernel.is_backward:
        return "it takes numbers, checks positions, or begins at the end"
    points = kernel.sections[0].axes[0].extent
    if not isinstance(points, int) or not 0 < points <= _MOST_POINTS:
        return "it has many points, or an unknown number of them"
    point = kernel.sections[0].axes[0].symbol
    if any(access.index != point for loop in kernel.loops for access in (*loop_reads(loop), *loop_writes(loop))):
        return "it reads or writes elsewhere than at its points"
    if len(rendered.buffers) * 2 > _MOST_ARGUMENTS:
        return "it has too many buffers"
    if any(buffers[name].kind is BufferKind.TEMP for name in rendered.buffers):
        return "temporaries share memory one after the other"
    return None


def member_of(
    kernel: Kernel,
    rendered: RenderedKernel,
    buffers: dict[str, Buffer],
    types: Sequence[str],
    slots: Mapping[str, int],
    inputs: frozenset[int],
    *,
    approximately: bool = False,
) -> Member:
    """The kernel with a number in place of how many points it has; `why_not_member` has no reason against it.

    inputs: the slots of memory that the caller gives, whether kernels know it as an input or as the output that updates it in place.
    """
    (section,) = kernel.sections
    (axis,) = section.axes
    assert isinstance(axis.extent, int)
    axes = (Axis(axis.symbol, _POINTS),)
    loops = [replace(loop, axes=axes) for loop in section.members]
    alone = Kernel((), [Section(axes, loops)], loops, kernel.locals)
    writer = BodyWriter(alone, buffers, _TILING, "tl.int32", approximately=approximately)
    writer.names[_POINTS] = "points"
    write_body(writer)
    assert tuple(writer.params) == rendered.buffers
    written = frozenset(
        [slots[write.buffer] for loop in loops for write in loop_writes(loop) if write.buffer in writer.params]
    )
    places = tuple([slots[name] for name in rendered.buffers])
    sizes = tuple([buffers[name].dtype.itemsize for name in rendered.buffers])
    return Member(
        *(rendered, tuple(writer.lines), tuple(writer.params.values()), tuple(types), axis.extent, places, written),
        *(not written.isdisjoint(inputs), sizes),
    )


def grouped(kernels: Sequence[RenderedKernel | Member]) -> list[list[RenderedKernel | Member]]:
    """The kernels in their order, consecutive members that may run beside each other in groups of about the same size."""
    runs: list[list[RenderedKernel | Member]] = []
    for kernel in kernels:
        if not runs or why_not_together(runs[-1], kernel) is not None:
            runs.append([])
        runs[-1].append(kernel)
    groups = []
    for run in runs:
        arguments = len(run[0].params) if isinstance(run[0], Member) else 1
        most = min(MOST_MEMBERS, _MOST_ARGUMENTS // arguments)
        size = -(-len(run) // -(-len(run) // most))
        groups += [run[k : k + size] for k in range(0, len(run), size)]
    return groups


def why_not_together(run: Sequence[RenderedKernel | Member], kernel: RenderedKernel | Member) -> str | None:
    """Why a kernel cannot run beside those of a run, which may run beside each other."""
    first = run[0]
    if not isinstance(first, Member) or not isinstance(kernel, Member) or first.kind != kernel.kind:
        return "another kind of kernel"
    for other in run:
        assert isinstance(other, Member)
        if not other.written.isdisjoint(kernel.slots) or not kernel.written.isdisjoint(other.slots):
            return "one of them writes what another one touches"
    return None


def group_text(members: Sequence[Member]) -> str:
    """The text of the kernel that runs the members, from its parameters on, as `RenderedKernel.text`."""
    params = members[0].params
    arguments = [f"{name}_{k}" for k in range(len(members)) for name in params]
    starts = [sum(member.programs for member in members[:k]) for k in range(len(members))]
    lines = [f"program = {_PROGRAM}"]
    lines.append("member = " + " + ".join([f"(program >= {start}).to(tl.int32)" for start in starts[1:]]))
    lines += _selected("first", [str(start) for start in starts])
    lines += _selected("points", [str(member.points) for member in members])
    for name in params:
        lines += _selected(name, [f"{name}_{k}" for k in range(len(members))])
    lines.append("points = tl.where((only < 0) | (only == member), points, 0)")
    lines.append("program = program - first")
    body = [line.replace(_PROGRAM, "program") for line in members[0].lines]
    settings = f"XBLOCK={_TILING.rows}, num_warps={_TILING.num_warps}, num_stages={_TILING.num_stages}"
    head = f"({', '.join(arguments)}, only, XBLOCK: tl.constexpr):\n    # {settings}\n    begin_kernel()\n"
    return head + "".join([f"    {line}\n" for line in lines]) + "\n".join(body) + "\n"


def _selected(name: str, values: Sequence[str]) -> list[str]:
    """Lines that give a variable the value of the program's member."""
    if all(value == values[0] for value in values):
        return [f"{name} = {values[0]}"]
    lines = [f"{name} = {values[0]}"]
    return lines + [f"{name} = tl.where(member == {k}, {value}, {name})" for k, value in enumerate(values[1:], 1)]


def group_record(members: Sequence[Member]) -> dict[str, object]:
    """How the group's kernel is compiled (`targets.triton.unit`)."""
    return {
        "signature": [*[type_ for member in members for type_ in member.types], "i32"],
        "constants": {"XBLOCK": _TILING.rows},
        "num_warps": _TILING.num_warps,
        "num_stages": _TILING.num_stages,
        "checks_bounds": False,
    }


def group_launch(members: Sequence[Member], name: str) -> dict[str, object]:
    """How the group is launched (`targets.triton.unit`); the last argument is the launcher's."""
    written = [slot in member.written and member.may_overlap for member in members for slot in member.slots]
    return {
        "kernel": name,
        "slots": [*[slot for member in members for slot in member.slots], 0],
        "grid": [[sum([member.programs for member in members]), 1]],
        "members": len(members),
        "bytes": [member.points * size for member in members for size in member.bytes_of_point],
        "written": [int(flag) for flag in written],
    }
