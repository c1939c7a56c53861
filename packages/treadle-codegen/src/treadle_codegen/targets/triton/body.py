"""Triton text of a whole kernel: its blocks, then its sections one after the other."""

from __future__ import annotations

from treadle_codegen.ir.loops import Axis, IntLike
from treadle_codegen.schedule.access import loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.triton.body_writer import BodyWriter, index_dim, program_id
from treadle_codegen.targets.triton.online import OnlineWriter, why_not_online
from treadle_codegen.targets.triton.section import SectionWriter
from treadle_codegen.targets.triton.tiles import is_flat, points


def write_body(writer: BodyWriter) -> list[tuple[IntLike, int]]:
    """Write the kernel's body; returns the grid as (points, block) per dimension."""
    kernel, tiling = writer.kernel, writer.tiling
    assert tiling is not None
    if is_flat(kernel):
        grid = _flat_dims(writer)
        SectionWriter(writer, kernel.sections[0], 0).write_straight()
        return grid
    writer.constants["XBLOCK"] = tiling.rows
    total = points(kernel.outer)
    writer.add_dim(index_dim(writer, "x", kernel.outer, "XBLOCK", "[:, None]"), f"{program_id(writer, 0)} * XBLOCK + ")
    later_reads = _read_in_later_sections(kernel)
    rows: dict[tuple[Axis, ...], SectionWriter] = {}
    barrier = False
    k = 0
    while k < len(kernel.sections):
        is_pair = not tiling.whole[k] and why_not_online(kernel, k) is None
        written = kernel.sections[k : k + 1 + is_pair]
        loops = [loop for section in written for loop in section.members]
        if barrier and any(read.buffer in later_reads for loop in loops for read in loop_reads(loop)):
            writer.line("tl.debug_barrier()")  # rows in memory are read by other threads than wrote them
            barrier = False
        if is_pair:
            OnlineWriter(writer, kernel.sections[k], k).write_pair(loops[1])
        else:
            _write_section(writer, k, rows)
        barrier |= any(write.buffer in later_reads for loop in loops for write in loop_writes(loop))
        k += len(written)
    return [(total, tiling.rows)]


def _write_section(writer: BodyWriter, k: int, rows: dict[tuple[Axis, ...], SectionWriter]) -> None:
    """Write a section. `rows`: the sections whose whole rows are in registers, by axes."""
    axes = writer.kernel.sections[k].axes
    section_writer = SectionWriter(writer, writer.kernel.sections[k], k, rows.get(axes))
    section_writer.write()
    if section_writer.is_whole:
        rows[axes] = section_writer


def _flat_dims(writer: BodyWriter) -> list[tuple[IntLike, int]]:
    tiling, axes = writer.tiling, writer.kernel.sections[0].axes
    assert tiling is not None
    writer.constants["XBLOCK"] = tiling.columns or tiling.rows
    if not tiling.columns:
        writer.add_dim(index_dim(writer, "x", axes, "XBLOCK", ""), f"{program_id(writer, 0)} * XBLOCK + ")
        return [(points(axes), tiling.rows)]
    writer.constants["YBLOCK"] = tiling.rows
    rows, columns = axes[: -tiling.column_axes], axes[-tiling.column_axes :]
    # The grid's first dimension has room for 2**31 programs, the others for 2**16 only.
    across = -(-points(columns) // tiling.columns)
    writer.line(f"xblocks = {writer.index(across)}")
    program = program_id(writer, 0)
    writer.add_dim(index_dim(writer, "y", rows, "YBLOCK", "[:, None]"), f"({program} // xblocks) * YBLOCK + ")
    writer.add_dim(index_dim(writer, "x", columns, "XBLOCK", "[None, :]"), f"({program} % xblocks) * XBLOCK + ")
    down = -(-points(rows) // tiling.rows)
    return [(across * down, 1)]


def _read_in_later_sections(kernel: Kernel) -> frozenset[str]:
    """Buffers in memory that some section reads after an earlier section wrote them."""
    written: set[str] = set()
    found: set[str] = set()
    for section in kernel.sections:
        found |= written & {a.buffer for loop in section.members for a in loop_reads(loop)}
        written |= {a.buffer for loop in section.members for a in loop_writes(loop)}
    return frozenset(found - kernel.locals.keys())
