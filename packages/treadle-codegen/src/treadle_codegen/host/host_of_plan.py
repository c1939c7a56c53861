"""An execution plan to the host that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from treadle_codegen.host.host import Host
from treadle_codegen.host.host_program import HostProgram
from treadle_codegen.host.number_groups import needed_by_host
from treadle_codegen.host.plan import ExecutionPlan, last_uses, lifetimes
from treadle_codegen.host.shape_specialisation import ShapeSpecialisation
from treadle_codegen.host.sizes import SizeTexts, size_numbers, size_symbols
from treadle_codegen.host.writer import HostWriter, write_body, write_host
from treadle_codegen.ir.loops import Extern
from treadle_codegen.targets.target import Allocation, Target


def host_of(
    plan: ExecutionPlan,
    target: Target,
    entries: Mapping[str, Callable[..., Any]],
    specialised_segments: Sequence[str] = (),
    specialisation: ShapeSpecialisation | None = None,
    *,
    verify: bool = False,
) -> Host:
    """Write the host function of a plan and make the callable of it; arguments as of `write_host_program` and `Host`."""
    allocation = target.allocation(plan.program.device or torch.device(target.devices[0]))
    program = write_host_program(plan, target, allocation, specialised_segments)
    return Host(program, target, allocation, entries, specialisation, verify=verify)


def write_host_program(
    plan: ExecutionPlan, target: Target, allocation: Allocation, specialised_segments: Sequence[str] = ()
) -> HostProgram:
    """Write the host function of a plan.

    specialised_segments: those that may get other entry points for given sizes (`host.shape_specialisation`).
    """
    spans = lifetimes(plan)
    sizes = SizeTexts(size_symbols(plan))
    writer = HostWriter(plan, target, sizes, planned=set(spans), run_time=frozenset(plan.program.bound_symbols))
    writer.borrows = allocation.unowned is not None
    writer.last_use = last_uses(plan)
    writer.needed = needed_by_host(plan.program, plan.nodes, plan.segments, frozenset(plan.covered()))
    writer.in_externs = {name for n in plan.nodes if isinstance(n.item, Extern) for name in n.reads | n.writes}
    body = write_body(writer)
    numbers = size_numbers(plan, sizes)
    compared = write_host(writer, body, list(spans), numbers, specialised_segments)
    buffers = plan.program.buffers
    return HostProgram(
        source="\n".join(writer.lines) + "\n",
        constants=writer.constants,
        callees=writer.callees,
        tensors=plan.program.constants,
        inputs=plan.program.inputs,
        slots=plan.slots,
        spans=spans,
        buffers={name: buffers[name] for name in spans},
        views=list(writer.views),
        statics=list(writer.statics),
        pool=[dtype for dtype, _ in writer.pool],
        symbols=sizes.in_order(),
        numbers=numbers,
        compared=compared,
        state=compared + len(sizes.values) + len(specialised_segments),
    )
