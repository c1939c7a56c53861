"""How a kernel's iteration space is cut into blocks: what one program of the grid computes, with how many warps.

Outer axes become rows of the grid's programs, `XBLOCK` at a time. A kernel whose sections all lack reductions and outer
axes is one flat space; where its operands are contiguous along different axes it is cut in two dimensions instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from treadle_codegen.ir.loops import Axis, Instr, IntLike, scans, symbols_of
from treadle_codegen.ir.ops import POSITIONS
from treadle_codegen.schedule.access import loop_reads, loop_writes, split_index
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_codegen.targets.triton.limits import MAX_ROW

_MAX_TILE = 1 << 14  # elements of a row tile
_LOOPED_BLOCK = 1 << 12  # elements per step where a row is walked in steps
_PROGRAMS = 4 * 132  # enough to fill a large GPU a few times over
_FLAT_BLOCK = 1024
_MAX_WARPS = 16
_SCATTERED_BLOCK = 512  # where neighbouring points are not neighbours in memory: a thread's own are far apart then
_MANY_ACCESSES = 24  # of a flat kernel; with more, eight elements per thread would not fit its registers
_SQUARE = (32, 32)
_RUNNING_REGISTERS = (
    96  # of a thread for running values of reductions and for scans: the rest is for the other values of a step
)
_ROW_REGISTERS = (
    160  # of a thread for what is loaded of a whole row and may be waited for at once; sm_90 gives a thread 255
)
_MOVES = frozenset(("load", "masked_load", "indirect_load", "store", "cast", "const", "scalar", "reduce", "scan"))


@dataclass(frozen=True, slots=True)
class Tiling:
    """Block sizes of a kernel.

    rows: how many outer points one program computes (flat kernels: how many points; two-dimensional ones: their rows).
    columns: for a two-dimensional flat kernel the block along the last axes, of which there are `column_axes`; else 0.
    steps: for each section, how many points of it are computed at once; whole: whether that is all of them.
    """

    rows: int
    steps: tuple[int, ...]
    whole: tuple[bool, ...]
    num_warps: int
    columns: int = 0
    column_axes: int = 0
    num_stages: int = 1

    def __str__(self) -> str:
        block = f"{self.rows}x{self.columns}" if self.columns else f"{self.rows} rows" if self.steps else f"{self.rows}"
        steps = f" steps {' '.join(map(str, self.steps))}" if self.steps else ""
        return f"{block}{steps} warps {self.num_warps}"


def points(axes: Sequence[Axis]) -> IntLike:
    """How many points the axes span."""
    total: IntLike = 1
    for axis in axes:
        total = total * axis.extent
    return total


def is_flat(kernel: Kernel) -> bool:
    """Whether a kernel is one space without reductions or scans."""
    return not kernel.outer and len(kernel.sections) == 1 and not _reduces(kernel.sections[0])


def _reduces(section: Section) -> bool:
    return any(loop.reduce_axes or scans(loop) for loop in section.members)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def fits_row(axes: Sequence[Axis]) -> bool:
    """Whether one program can hold a whole row over these axes in registers."""
    total = points(axes)
    return isinstance(total, int) and total <= MAX_ROW


def tile(kernel: Kernel) -> Tiling:
    """The blocks of a kernel."""
    return _flat(kernel) if is_flat(kernel) else _with_enough_warps(_with_short_steps(_rowwise(kernel), kernel), kernel)


def _rowwise(kernel: Kernel) -> Tiling:
    total = points(kernel.outer)
    lengths = [points(section.axes) for section in kernel.sections]
    if is_across(kernel):
        return _columnwise(total, lengths, passes_rows=_passes_rows(kernel), together=_taken_together(kernel))
    longest = max([n if isinstance(n, int) else _LOOPED_BLOCK for n in lengths], default=1)
    rows = _rows(total, max(1, 2048 // next_power_of_2(min(longest, MAX_ROW))))
    steps, whole = [], []
    for length in lengths:
        fits = isinstance(length, int) and length <= MAX_ROW
        whole.append(fits)
        steps.append(next_power_of_2(length) if fits else max(1, _LOOPED_BLOCK // rows))
    widest = max(steps, default=1)
    return Tiling(rows, tuple(steps), tuple(whole), _warps(rows * widest, 512 if widest <= 4096 else 1024))


def candidates(kernel: Kernel) -> list[Tiling]:
    """The tilings of a kernel that are worth measuring; first the one that is taken without measuring."""
    first = tile(kernel)
    found = [first]
    found += [replace(first, num_warps=n) for n in (first.num_warps // 2, first.num_warps * 2) if 1 <= n <= _MAX_WARPS]
    for rows in (first.rows // 2, first.rows * 2):
        area = rows * max([*first.steps, first.columns, 1])
        if rows >= 1 and area <= _MAX_TILE:
            found.append(replace(first, rows=rows))
            found += [replace(first, rows=rows, num_warps=first.num_warps * 2)] * (
                rows > first.rows and first.num_warps < _MAX_WARPS
            )
    if not all(first.whole) and first.steps:
        halved = [n if whole else max(n // 2, 1) for n, whole in zip(first.steps, first.whole, strict=True)]
        found.append(replace(first, steps=tuple(halved)))
    return found


def _with_short_steps(tiling: Tiling, kernel: Kernel) -> Tiling:
    """Steps of which a thread's values stay in its registers. Rows with scans that do not are walked, unless sections share them."""
    threads, steps, whole = 32 * min(tiling.num_warps, 8), list(tiling.steps), list(tiling.whole)
    passes_rows = _passes_rows(kernel)
    for k, section in enumerate(kernel.sections):
        if whole[k] and (passes_rows or not _scans(section)):
            continue
        most = max(1, _RUNNING_REGISTERS * threads // (tiling.rows * max(1, _step_registers(kernel, section))))
        while steps[k] > most:
            steps[k], whole[k] = steps[k] // 2, False
    return replace(tiling, steps=tuple(steps), whole=tuple(whole))


def _with_enough_warps(tiling: Tiling, kernel: Kernel) -> Tiling:
    """As many warps as leave each thread registers for what it loads of a whole row."""
    taken = [_loads(s) * n for s, n, whole in zip(kernel.sections, tiling.steps, tiling.whole, strict=True) if whole]
    registers = tiling.rows * max(taken, default=0)
    warps = tiling.num_warps
    while warps < _MAX_WARPS and registers > _ROW_REGISTERS * 32 * warps:
        warps *= 2
    return replace(tiling, num_warps=warps)


def _loads(section: Section) -> int:
    """How many different values are loaded for each point of a section."""
    axes = {axis.symbol for axis in section.axes}
    reads = (read for loop in section.members for read in loop_reads(loop))
    return len({(read.buffer, read.index) for read in reads if read.index is None or axes & symbols_of(read.index)})


def _step_registers(kernel: Kernel, section: Section) -> int:
    """Registers for each place in a step's block: what reductions carry from step to step, and what scans need at once."""
    per_index = 1 if isinstance(points((*kernel.outer, *section.axes)), int) else 2
    found = int(_scans(section))  # results of scans wait for each other, and with them all of their addresses
    widest, computes_doubles = 1, False
    for loop in section.members:
        with_position = {(instr.args, POSITIONS[instr.attr]) for instr in loop.body if _finds_position(instr)}
        for instr in loop.body:
            dtype = loop.body[instr.args[0]].dtype if instr.op == "reduce" else instr.dtype
            words = max(1, dtype.itemsize // 4)
            # A value comes with its position.
            if instr.op == "reduce" and (instr.args, instr.attr) not in with_position:
                found += words + per_index * _finds_position(instr)
            elif instr.op == "scan":
                found += 2 * words
            widest = max(widest, words)
            computes_doubles |= instr.dtype is torch.float64 and instr.op not in _MOVES
    in_flight = (per_index - 1) * widest  # addresses of 64 bits, with what is loaded from there
    return found + 2 * computes_doubles + in_flight


def _scans(section: Section) -> bool:
    return any(scans(loop) for loop in section.members)


def _finds_position(instr: Instr) -> bool:
    return instr.op == "reduce" and instr.attr in POSITIONS


def _passes_rows(kernel: Kernel) -> bool:
    """Whether a section reads, in registers, a row that an earlier section wrote."""
    written: set[str] = set()
    for section in kernel.sections:
        names = {name for name, local in kernel.locals.items() if local.is_row}
        if written & {read.buffer for loop in section.members for read in loop_reads(loop)}:
            return True
        written |= names & {write.buffer for loop in section.members for write in loop_writes(loop)}
    return False


def _rows(total: IntLike, most: int) -> int:
    """Rows per program: as many as `most`, unless the grid would have too few programs."""
    if isinstance(total, int):
        most = min(most, next_power_of_2(total))
        while most > 1 and -(-total // most) < _PROGRAMS:
            most //= 2
    return most


def _warps(elements: int, per_warp: int) -> int:
    return min(max(elements // per_warp, 1), _MAX_WARPS)


def _taken_together(kernel: Kernel) -> int:
    """How many neighbouring elements each lane of a columnwise block stands for: two where some have less than 4 bytes, which are as many
    bytes next to each other and as many in all; one where a position or a scan's total is kept for each, as registers would run out."""
    body = [instr for loop in kernel.loops for instr in loop.body]
    if any(_finds_position(instr) or instr.op == "scan" for instr in body):
        return 1
    return 1 + any(instr.op in ("load", "masked_load") and instr.dtype.itemsize < 4 for instr in body)


def _columnwise(total: IntLike, lengths: Sequence[IntLike], *, passes_rows: bool, together: int) -> Tiling:
    """For rows whose neighbours are next to each other in memory: wide in rows, narrow along the reduction."""
    rows = _rows(total * together, 64)
    rows = max(rows, min(16, next_power_of_2(total) if isinstance(total, int) else 16))
    longest = max([next_power_of_2(n) for n in lengths if isinstance(n, int)], default=1)
    if passes_rows:
        rows = max(1, min(rows, _MAX_TILE // longest))
    most = longest if passes_rows else max(1, 4096 * together // rows)
    steps = [min(most, next_power_of_2(n)) if isinstance(n, int) else most for n in lengths]
    whole = [isinstance(n, int) and n <= step for n, step in zip(lengths, steps, strict=True)]
    return Tiling(rows, tuple(steps), tuple(whole), _warps(rows * max(steps, default=1), 1024 * together))


def is_across(kernel: Kernel) -> bool:
    """Whether more accesses are contiguous along the outer axes than along the sections' own."""
    if not kernel.outer:
        return False
    along, across = 0, 0
    outer = kernel.outer[-1].symbol
    for section in kernel.sections:
        if not section.axes:
            continue
        inner = section.axes[-1].symbol
        for loop in section.members:
            for access in (*loop_reads(loop), *loop_writes(loop)):
                split = None if access.index is None else split_index(access.index, [outer, inner])
                if split is not None:
                    along += split[0][1] == 1
                    across += split[0][0] == 1 and split[0][1] != 0
    return across > along


def _flat(kernel: Kernel) -> Tiling:
    axes = kernel.sections[0].axes
    total = points(axes)
    columns = _column_axes(kernel, axes)
    if columns:
        return Tiling(_SQUARE[0], (), (), 4, _SQUARE[1], columns)
    block, per_warp = (_SCATTERED_BLOCK, 128) if _is_scattered(kernel) else (_FLAT_BLOCK, 256)
    if isinstance(total, int):
        while block > 128 and -(-total // block) < _PROGRAMS:
            block //= 2
    if _accesses(kernel) > _MANY_ACCESSES:
        return Tiling(min(block, 256), (), (), min(block, 256) // 64)
    return Tiling(block, (), (), max(block // per_warp, 1))


def _is_scattered(kernel: Kernel) -> bool:
    """Whether neighbouring points read or write in memory at a distance, or where data says."""
    axes = kernel.sections[0].axes
    for loop in kernel.sections[0].members:
        for access in (*loop_reads(loop), *loop_writes(loop)):
            if access.index is None and access in loop_writes(loop):
                return True
            split = None if access.index is None or not axes else split_index(access.index, [axes[-1].symbol])
            if split is not None and split[0][0] not in (0, 1, -1):
                return True
    return False


def _accesses(kernel: Kernel) -> int:
    """How many loads and stores the kernel has, which tells how many values a thread holds for each of its elements."""
    loops = kernel.loops
    return sum(len([*loop_reads(loop), *loop_writes(loop)]) for loop in loops)


def _column_axes(kernel: Kernel, axes: Sequence[Axis]) -> int:
    """How many of the last axes are the columns of a two-dimensional space; 0 where a flat one serves all accesses.

    The rows then end with an axis along which some other access is contiguous.
    """
    if len(axes) < 2:
        return 0
    symbols = [axis.symbol for axis in axes]
    last, other = 0, 0
    for loop in kernel.sections[0].members:
        for access in (*loop_reads(loop), *loop_writes(loop)):
            split = None if access.index is None else split_index(access.index, symbols)
            if split is None:
                continue
            steps = split[0]
            if steps[-1] == 1:
                last += 1
            elif steps[-1] != 0 and 1 in steps[:-1]:
                axis = len(steps) - 2 - steps[:-1][::-1].index(1)
                if _wide(axes[axis]) and _wide(axes[-1]):
                    other = max(other, len(axes) - 1 - axis)
    return other if last and other else 0


def _wide(axis: Axis) -> bool:
    return not isinstance(axis.extent, int) or axis.extent >= 16


def why_not_registers(kernel: Kernel, buffer: str) -> str | None:
    """Why a kernel cannot keep a temporary of which it is the only reader in the registers that hold its row.

    Every reader must see it at the point at which it was written, and all sections in between as one whole row.
    """
    written: tuple[Section, IntLike] | None = None
    for section in kernel.sections:
        for loop in section.members:
            for read in loop_reads(loop):
                if read.buffer != buffer or written is None:
                    continue
                if read.index != written[1] or section.axes != written[0].axes:
                    return "it is read at other points than it is written"
                if section is not written[0] and not fits_row(section.axes):
                    return "the row is walked in steps"
            for write in loop_writes(loop):
                if write.buffer == buffer:
                    if write.index is None or loop.reduce_axes:
                        return "it is written through data, or after a reduction"
                    written = section, write.index
    return None
