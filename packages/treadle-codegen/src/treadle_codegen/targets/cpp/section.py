"""C++ text of one section of a kernel: its loop nest, its members' bodies, its reductions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from treadle_codegen.ir.loops import Axis, Instr, IntLike, Load, Loop
from treadle_codegen.ir.ops import OPS, POSITIONS, SCATTERS, Cost
from treadle_codegen.ir.product import varies_along
from treadle_codegen.schedule.access import axis_ranges, loop_writes, split_index, step_along
from treadle_codegen.schedule.kernel import Section
from treadle_codegen.schedule.positions import checks_positions, lies_inside, positions_to_check
from treadle_codegen.targets.constants import ConstantArgument
from treadle_codegen.targets.cpp.dependence import why_in_order, why_varies
from treadle_codegen.targets.cpp.far_loads import far_loads
from treadle_codegen.targets.cpp.from_bools import is_from_bools
from treadle_codegen.targets.cpp.from_floats import is_cut_float
from treadle_codegen.targets.cpp.ops import (
    C_TYPES,
    MEMORY_TYPES,
    calls_c_library,
    cast,
    constant,
    expression,
    half_where,
    packed,
    read_memory,
    write_memory,
)
from treadle_codegen.targets.cpp.pieces import linear_pieces
from treadle_codegen.targets.cpp.short_floats import is_bfloat16
from treadle_codegen.targets.cpp.vector_math import sleef_call
from treadle_codegen.targets.instructions import InstructionWriter
from treadle_codegen.targets.renderer import split_at_reduce
from treadle_shapes.expr import Ge, Range, Symbol, simplify

if TYPE_CHECKING:
    from treadle_codegen.targets.cpp.renderer import KernelWriter

BLOCK = 4096  # longest run summed in one go; float sums of longer runs add up blocks in double

_LONG_ROW = 256
_LIGHT_BODY = 8  # instructions

IDENTITY = {"sum": 0, "prod": 1, "any": False, "all": True}
_CLAUSE = {"sum": "+", "prod": "*", "max": "max", "min": "min", "any": "|", "all": "&"}


@dataclass(slots=True)
class Accumulator:
    """One `reduce` instruction: names of the running value, and of what else its kind keeps."""

    kind: str
    name: str
    dtype: torch.dtype  # of the reduced values
    total: str | None = None  # sum over blocks

    @property
    def c_type(self) -> str:
        return "int" if self.dtype is torch.bool else C_TYPES[self.dtype]


class SectionPrinter(InstructionWriter):
    """Writes one section; made for one use."""

    def __init__(self, writer: KernelWriter, section: Section, later_reads: set[str], *, parallel: bool) -> None:
        super().__init__(writer)
        self.writer = writer
        self.enter(section)
        self.later_reads = later_reads
        self.parallel = parallel
        self.accumulators: dict[tuple[int, int], Accumulator] = {}
        self.checks = self.checks_inside = False  # whether positions may be out of range, found in the innermost loop
        self.streams = writer.tiling.streams
        self.pointers: dict[tuple[str, IntLike], str] = {}  # of loads that have pointers of their own
        self.all_checked = False  # whether that has been found out before the loops, or before the kernel
        self.checked: dict[
            tuple[str, IntLike], str
        ] = {}  # positions checked before the innermost loop: (value, size) -> name
        # With one axis the last block, mostly the only one, stays in the accumulator: short sums never become double.
        self.last_block = len(section.axes) == 1

    def enter(self, section: Section) -> None:
        """Write `section` from now on. Sections share the symbols of their axes, whose extents differ."""
        self.section = section
        self.writer.ranges |= axis_ranges(section.axes)

    def write(self) -> None:
        writer, axes = self.writer, self.section.axes
        self.checks = self.checks_inside = any(map(checks_positions, self.section.members))
        self.all_checked = not self.checks
        self._declare()
        self._separate_far_loads()
        if self.checks and any(i.op == "indirect_store" for member in self.section.members for i in member.body):
            self._check_all()
        if not axes:
            for m, loop in enumerate(self.section.members):
                self._instructions(m, loop, 0, len(loop.body), outer=True)
            return
        opened = self._open_outer()
        is_shared = self.parallel and len(axes) == 1
        self._check_before(axes[-1], shared=is_shared)
        within, blocked = self._open_blocks(axes[-1])
        bounds = self._bounds(axes[-1], blocked=blocked)
        in_streams = why_not_streams(self.section, self.parallel) is None
        if in_streams:
            writer.uses.add("streams")
        if in_streams and self.streams > 1:
            self._write_streams(axes[-1], *bounds)
        elif pieces := [] if is_shared else linear_pieces(self.section, axes[-1], writer.ranges):
            self._write_pieces(axes[-1], pieces)
        else:
            self._write_innermost(axes[-1], *bounds)
        if within:
            if self.last_block:
                writer.line(f"if ({axes[-1].symbol.name}e >= {writer.index(axes[-1].extent)}) break;")
            for acc in self.accumulators.values():
                if acc.total is not None:
                    writer.line(f"{acc.total} += {acc.name};")
            if self.last_block:
                writer.line(f"{axes[-1].symbol.name}b = {axes[-1].symbol.name}e;")
            writer.close(1)
        writer.close(opened)
        self._finish()

    # -- loops and accumulators

    def _separate_far_loads(self) -> None:
        """Give loads that step far along the innermost axis pointers of their own."""
        writer = self.writer
        if not self.section.axes:
            return
        for buffer, index in far_loads(self.section.members, self.section.axes[-1], writer.kernel.locals):
            name = self.pointers[(buffer, index)] = writer.fresh() + "p"
            writer.line(f"const {MEMORY_TYPES[writer.buffers[buffer].dtype]}* {name} = {writer.param(buffer)};")
            writer.line(f"FORGET({name});")

    def _open_outer(self) -> int:
        """Open the loops around the innermost one; how many."""
        axes = self.section.axes[:-1]
        if axes:
            self._share()
        for axis in axes:
            self.writer.open_loop(axis)
        return len(axes)

    def _check_all(self) -> None:
        """Loops that check all positions, and leave the kernel if one is out of range: nothing is written then."""
        writer = self.writer
        for m, loop in enumerate(self.section.members):
            positions = positions_to_check(loop, writer.ranges)
            symbols = frozenset[Symbol]().union(*[varies_along(loop, k) for k, _ in positions])
            axes = [axis for axis in self.section.axes if axis.symbol in symbols]
            writer.line("{")
            writer.depth += 1
            for axis in axes:
                writer.open_loop(axis)
            names: dict[int, str] = {}
            for k, size in positions:
                writer.checks_bounds = True
                self._check(self._value(m, loop, k, names, outer=False), size)
            writer.close(len(axes) + 1)
            self.inner_values.clear()
            self.inner_stored.clear()
        if writer.checks_bounds:
            writer.line("if (bad) { *err = 1; return; }")
        self.all_checked, self.checks = True, False

    def _check_before(self, inner: Axis, *, shared: bool = False) -> None:
        """Check positions that are data, and the same all along the innermost loop, before that loop.

        shared: between threads, which keep their own `bad` inside of the loop.
        """
        self.checks_inside = False
        if self.all_checked:
            return
        written = {access.buffer for member in self.section.members for access in loop_writes(member)}
        for m, loop in enumerate(self.section.members):
            names: dict[int, str] = {}
            for k, size in positions_to_check(loop, self.writer.ranges):
                if (
                    shared
                    or not self._is_positive(inner.extent)
                    or why_varies(loop, k, inner.symbol, written) is not None
                ):
                    self.checks_inside = True
                    continue
                index = self._value(m, loop, k, names, outer=False)
                if (index, size) not in self.checked:
                    self.checked[(index, size)] = self._check(index, size)

    def _is_positive(self, n: IntLike) -> bool:
        return simplify(Ge(n, 1), self.writer.ranges) is True

    def _share(self) -> None:
        """Let threads share the loop that follows."""
        if self.parallel and why_in_order(self.section, self.section.axes[0]) is None:
            self.writer.line(f"#pragma omp parallel for num_threads({self.writer.threads}){self._bad_clause()}")

    def _bounds(self, axis: Axis, *, blocked: bool) -> tuple[str, str]:
        """First position and end of the innermost loop."""
        name = axis.symbol.name
        return (f"{name}b", f"{name}e") if blocked else ("0", self.writer.index(axis.extent))

    def _declare(self) -> None:
        innermost = self.section.axes[-1].extent if self.section.axes else 1
        single = len(self.section.axes) == 1 and isinstance(innermost, int) and innermost <= BLOCK
        for m, loop in enumerate(self.section.members):
            for k, instr in enumerate(loop.body):
                if instr.op != "reduce":
                    continue
                dtype = loop.body[instr.args[0]].dtype
                acc = Accumulator(instr.attr, self.writer.fresh(), dtype)
                if instr.attr == "sum" and dtype.is_floating_point and not single:
                    acc.total = acc.name + "t"
                    self.writer.line(f"double {acc.total} = 0;")
                    if self.last_block:
                        self.writer.line(f"{acc.c_type} {acc.name};")
                else:
                    self._declare_accumulator(acc)
                self.accumulators[(m, k)] = acc

    def _declare_accumulator(self, acc: Accumulator) -> None:
        line = self.writer.line
        if acc.kind in POSITIONS:  # the first of values that are all the worst
            line(f"{acc.c_type} {acc.name} = {worst(acc)}; i64 {acc.name}p = 0;")
        elif acc.kind in ("max", "min"):
            line(f"{acc.c_type} {acc.name} = {worst(acc)};")
            if acc.dtype.is_floating_point:
                line(f"int {acc.name}n = 0;")
        else:
            line(f"{acc.c_type} {acc.name} = {constant(IDENTITY[acc.kind], acc.dtype)};")

    def _open_blocks(self, axis: Axis) -> tuple[bool, bool]:
        """Open a scope for the sums of one block of the innermost axis where long sums need it, and a loop over blocks where there are
        several; whether each was done."""
        writer = self.writer
        name, extent = axis.symbol.name, writer.index(axis.extent)
        totals = [acc for acc in self.accumulators.values() if acc.total is not None]
        blocked = bool(totals) and not (isinstance(axis.extent, int) and axis.extent <= BLOCK)
        if totals and not blocked:
            # rows of a multi-dimensional reduction: each row is a block
            writer.line("{")
            writer.depth += 1
            for acc in totals:
                writer.line(f"{acc.c_type} {acc.name} = 0;")
        if blocked:
            writer.line(f"for (i64 {name}b = 0;{self._block_step(name, extent)}) {{")
            writer.depth += 1
            for acc in totals:
                writer.line(f"{'' if self.last_block else acc.c_type + ' '}{acc.name} = 0;")
            writer.line(f"const i64 {name}e = {name}b + {BLOCK} < {extent} ? {name}b + {BLOCK} : {extent};")
        return bool(totals), blocked

    def _write_innermost(self, axis: Axis, first: str, end: str) -> None:
        self._open_innermost(axis, first, end)
        self._write_bodies()
        self.writer.close(1)

    def _open_innermost(self, axis: Axis, first: str, end: str) -> None:
        """Open the innermost loop, as a SIMD loop where its points need no order."""
        writer, name = self.writer, axis.symbol.name
        one_by_one = any(acc.kind in POSITIONS for acc in self.accumulators.values())
        if one_by_one or why_in_order(self.section, axis) is not None:
            pass
        elif self.parallel and len(self.section.axes) == 1:
            writer.line(f"#pragma omp parallel for simd num_threads({writer.threads}){self._bad_clause()}")
        else:
            writer.line(f"#pragma omp simd{self._simd_clauses(self.accumulators.values())}")
        writer.line(f"for (i64 {name} = {first}; {name} < {end}; ++{name}) {{")
        writer.depth += 1

    def _write_bodies(self) -> None:
        for m, loop in enumerate(self.section.members):
            end = split_at_reduce(loop) if loop.reduce_axes else len(loop.body)
            self._instructions(m, loop, 0, end, outer=False)

    def _write_pieces(self, axis: Axis, pieces: list[tuple[int, int]]) -> None:
        """The innermost loop in pieces, in each of which positions are simpler."""
        for first, end in pieces:
            self.inner_values.clear()
            self.inner_stored.clear()
            with self.writer.narrowed(axis.symbol, Range(first, end - 1)):
                self._open_innermost(axis, str(first), str(end))
                self._write_bodies()
                self.writer.close(1)

    def _write_streams(self, axis: Axis, first: str, end: str) -> None:
        """The innermost loop of a light reduction in several streams, each a part of the axis with accumulators of its own.

        One accumulator makes every operation wait for the one before. Of rows in the caches, maxima gain up to a third; sums are limited by
        the caches and gain nothing (EPYC, AVX-512), so that streams are taken only where autotuning has found them faster.
        """
        writer, name = self.writer, axis.symbol.name
        length, at = writer.fresh(), writer.fresh()
        writer.line(f"const i64 {length} = ({end} - {first}) / {self.streams};")
        own = dict(self.accumulators)
        copies = [own]
        for k in range(1, self.streams):
            copies.append({key: replace(acc, name=f"{acc.name}s{k}", total=None) for key, acc in own.items()})
            for acc in copies[-1].values():
                self._declare_accumulator(acc)
        everything = [acc for stream in copies for acc in stream.values()]
        writer.line(f"#pragma omp simd{self._simd_clauses(everything)}")
        writer.line(f"for (i64 {at} = 0; {at} < {length}; ++{at}) {{")
        writer.depth += 1
        for k, stream in enumerate(copies):
            self.accumulators = stream
            writer.line(f"{{ const i64 {name} = {first} + {k} * {length} + {at};")
            writer.depth += 1
            self.inner_values.clear()
            self._write_bodies()
            writer.close(1)
        writer.close(1)
        self.accumulators = own
        self.inner_values.clear()
        for stream in copies[1:]:
            for key, acc in stream.items():
                self._accumulate(own[key], acc.name)
                if own[key].kind in ("max", "min") and acc.dtype.is_floating_point:
                    writer.line(f"{own[key].name}n |= {acc.name}n;")
        self._open_innermost(axis, f"{first} + {self.streams} * {length}", end)
        self._write_bodies()
        writer.close(1)

    def _block_step(self, name: str, extent: str) -> str:
        return ";" if self.last_block else f" {name}b < {extent}; {name}b += {BLOCK}"

    def _bad_clause(self) -> str:
        return " reduction(|:bad)" if self.checks else ""

    def _simd_clauses(self, accumulators: Iterable[Accumulator]) -> str:
        by_operator: dict[str, list[str]] = {}
        for acc in accumulators:
            by_operator.setdefault(_CLAUSE[acc.kind], []).append(acc.name)
            if acc.kind in ("sum", "prod") and acc.dtype.is_floating_point:
                self.writer.why_not_constant = "the compiler chooses the order in which something is added up"
            if acc.kind in ("max", "min") and acc.dtype.is_floating_point:
                by_operator.setdefault("|", []).append(acc.name + "n")
        if self.checks_inside:
            by_operator.setdefault("|", []).append("bad")
        return "".join(f" reduction({op}:{', '.join(names)})" for op, names in by_operator.items())

    def _accumulate(self, acc: Accumulator, value: str) -> None:
        line, name = self.writer.line, acc.name
        if acc.kind == "sum" and not acc.dtype.is_floating_point:
            line(f"{name} = ({acc.c_type})({name} + {value});")
        elif acc.kind in ("sum", "prod"):
            line(f"{name} {'+' if acc.kind == 'sum' else '*'}= {value};")
        elif acc.kind in ("max", "min"):
            line(f"{name} = {value} {'>' if acc.kind == 'max' else '<'} {name} ? {value} : {name};")
            if acc.dtype.is_floating_point:
                line(f"{name}n |= {value} != {value};")
        elif acc.kind in ("any", "all"):
            line(f"{name} {'|' if acc.kind == 'any' else '&'}= {value};")
        else:
            better = f"{value} {'>' if acc.kind == 'argmax' else '<'} {name}"
            if acc.dtype.is_floating_point:
                better = f"{better} || ({value} != {value} && {name} == {name})"
            line(f"if ({better}) {{ {name} = {value}; {name}p = {self._position()}; }}")

    def _position(self) -> str:
        """Row-major position of the current point in the section's axes."""
        position: IntLike = 0
        for axis in self.section.axes:
            position = position * axis.extent + axis.symbol
        return self.writer.index(position)

    def _finish(self) -> None:
        """After the loops: results of reductions get their names, and what follows them is computed at the outer level."""
        for (m, k), acc in self.accumulators.items():
            name = self.writer.fresh()
            if acc.total is not None and self.last_block:
                extent = self.writer.index(self.section.axes[-1].extent)
                text = f"{extent} > {BLOCK} ? ({acc.c_type})({acc.total} + {acc.name}) : {acc.name}"
            elif acc.total is not None:
                text = f"({acc.c_type}){acc.total}"
            elif acc.kind in POSITIONS:
                text = acc.name + "p"
            elif acc.kind in ("max", "min") and acc.dtype.is_floating_point:
                text = f"{acc.name}n ? {constant(float('nan'), acc.dtype)} : {acc.name}"
            else:
                text = acc.name
            c_type = "i64" if acc.kind in POSITIONS else C_TYPES[acc.dtype]
            self.writer.line(f"const {c_type} {name} = {text};")
            self.results[(m, k)] = name
        for m, loop in enumerate(self.section.members):
            if loop.reduce_axes:
                self._instructions(m, loop, split_at_reduce(loop), len(loop.body), outer=True)

    # -- instructions

    def _define(self, loop: Loop, instr: Instr, args: tuple[str, ...], *, outer: bool) -> str:
        text = self._text(loop, instr, args, outer=outer)
        name = self.writer.fresh()
        if is_bfloat16(instr, args, self.writer.short_floats):
            self.writer.short_floats.add(name)
        bits = packed(text, instr.dtype) if instr.op in ("load", "indirect_load", "cast") else None
        if bits is not None:  # rounded once, however often it is stored
            self.writer.packed.add(name)
            self.writer.line(f"const {MEMORY_TYPES[instr.dtype]} {name}h = {bits};")
            text = f"{text[: text.index('(')]}({name}h)"
        if instr.op in ("index", "const"):
            self.writer.positions[name] = instr.attr
        if is_from_bools(loop, instr) or (
            instr.op not in ("load", "indirect_load") and self.writer.from_bools & {*args}
        ):
            self.writer.from_bools.add(name)
        self.writer.line(f"const {C_TYPES[instr.dtype]} {name} = {text};")
        return name

    def _in_memory(self, value: str, dtype: torch.dtype) -> str:
        """What is stored for a named value."""
        if value in self.writer.packed:
            return f"{value}h"
        is_short = dtype is torch.bfloat16 and value in self.writer.short_floats
        return f"cut_bf16({value})" if is_short else write_memory(value, dtype)

    def _text(self, loop: Loop, instr: Instr, args: tuple[str, ...], *, outer: bool) -> str:
        op, dtype = instr.op, instr.dtype
        if op == "load":
            place = self._place(instr.attr.buffer, instr.attr.index)
            if dtype is torch.float16 and self.accumulators:  # a call would take them out of their registers
                return f"from_f16({place})"
            return read_memory(place, dtype)
        if op == "masked_load":
            load, condition, other = instr.attr
            chosen = self.writer.condition(condition)
            value = self._stored(load, outer=outer)
            if value is not None:
                return f"{chosen} ? {value} : {constant(other, dtype)}"
            place = self._place_where(chosen, load, dtype)
            if dtype is torch.float16:
                return half_where(self._both(chosen), place, other)
            return f"{chosen} ? {read_memory(place, dtype)} : {constant(other, dtype)}"
        if op == "indirect_load":
            filled = self._nonempty(instr.attr[2], args)
            place = self._indirect(instr.attr, args)
            return read_memory(f"({' && '.join(filled)} ? {place} : 0)" if filled else place, dtype)
        if op == "const":
            return f"c{instr.attr.number}" if isinstance(instr.attr, ConstantArgument) else constant(instr.attr, dtype)
        if op == "index":
            return self.writer.index(instr.attr)
        if op == "scalar":
            return self.writer.names[instr.attr]
        if op == "cast":
            if dtype is torch.bfloat16 and args[0] in self.writer.short_floats:
                return f"from_bf16(cut_bf16({args[0]}))"
            source = loop.body[instr.args[0]]
            is_taken_back = dtype.is_floating_point and is_cut_float(loop, source)
            return cast(f"cut({args[0]})" if is_taken_back else args[0], source.dtype, dtype)
        arg_dtype = loop.body[instr.args[0]].dtype
        if calls_c_library(op, arg_dtype):
            name = sleef_call("exp" if op == "sigmoid" else op, arg_dtype)
            if name is not None:
                return f"1.0 / (1.0 + {name}(-{args[0]}))" if op == "sigmoid" else f"{name}({', '.join(args)})"
            self.writer.why_not_constant = f"{op} is the C library's, or the compiler's where its argument is constant"
        return expression(op, args, dtype, arg_dtype)

    def _place(self, buffer: str, index: IntLike) -> str:
        return f"{self._pointer(buffer, index)}[{self._element(buffer, index)}]"

    def _pointer(self, buffer: str, index: IntLike) -> str:
        return self.pointers.get((buffer, index)) or self.writer.param(buffer)

    def _element(self, buffer: str, index: IntLike) -> str:
        """Where an element lies in the memory, or in the array, that stands for a buffer."""
        local = self.writer.kernel.locals.get(buffer)
        if local is not None:
            split = split_index(index, [a.symbol for a in self.writer.kernel.outer])
            assert split is not None, "a local buffer is indexed linearly by construction"
            index = split[1] - local.start
        return self.writer.index(index)

    def _both(self, condition: str) -> str:
        """The condition, and what else must hold for an element of the section to be there."""
        return condition

    def _place_where(self, condition: str, load: Load, dtype: torch.dtype) -> str:
        """What is read in memory where `condition` holds, and may be out of bounds elsewhere.

        g++ 12.2 gives the wrong elements where a vector loop reads several neighbours of a group, b[3*j], b[3*j + 1], b[3*j + 2], under one
        condition. Such loads stand before the condition, and read another position where it does not hold.
        """
        condition = self._both(condition)
        place = self._place(load.buffer, load.index)
        step = step_along(load.index, self._vector_axis())
        if not isinstance(step, int) or abs(step) < 2:
            return place
        memory, position = self._pointer(load.buffer, load.index), self._element(load.buffer, load.index)
        shape = () if load.buffer in self.writer.kernel.locals else self.writer.buffers[load.buffer].shape
        if all(map(self._is_positive, shape)):
            name = self.writer.fresh()
            self.writer.line(f"const {MEMORY_TYPES[dtype]} {name} = {memory}[{condition} ? {position} : 0];")
            return name
        return f"(*(const volatile {MEMORY_TYPES[dtype]}*)&{place})"  # no vectors

    def _vector_axis(self) -> Axis | None:
        """The axis whose points share a vector, if any do."""
        axes = self.section.axes or self.writer.kernel.outer
        return axes[-1] if axes else None

    def _indirect(self, attr: tuple[Any, ...], indices: tuple[str, ...]) -> str:
        buffer, strides, sizes = attr[:3]
        terms = []
        self.writer.checks_bounds |= not self.all_checked
        for index, stride, size in zip(indices, strides, sizes, strict=True):
            if self.all_checked:
                terms.append(f"{self._hidden(index, index)} * ({self.writer.index(stride)})")
                continue
            if self._is_inside(index, size):
                terms.append(f"({self.writer.index(self.writer.positions[index])}) * ({self.writer.index(stride)})")
                continue
            name = self.checked.get((index, size)) or self._check(index, size)
            terms.append(f"{self._hidden(name, index)} * ({self.writer.index(stride)})")
        return f"{self.writer.param(buffer)}[{' + '.join(terms) or '0'}]"

    def _hidden(self, position: str, index: str) -> str:
        """A position that `index` gives, in a form that the compiler cannot take back to the bools that it is computed from."""
        return f"hidden({position})" if index in self.writer.from_bools else position

    def _nonempty(self, sizes: tuple[IntLike, ...], indices: tuple[str, ...]) -> list[str]:
        """Conditions under which there is an element to read where a position is out of range, beside those that always hold."""
        pairs = [] if self.all_checked else zip(indices, sizes, strict=True)
        checked = [size for index, size in pairs if not self._is_inside(index, size)]
        return [f"({self.writer.index(size)}) > 0" for size in checked if not self._is_positive(size)]

    def _is_inside(self, index: str, size: IntLike) -> bool:
        """Whether a value is known to be a position in a dimension of that size."""
        e = self.writer.positions.get(index)
        return e is not None and lies_inside(e, size, self.writer.ranges)

    def _check(self, index: str, size: IntLike) -> str:
        """The name of a position that is in range; the call fails if `index` was not."""
        name = self.writer.fresh()
        self.writer.line(f"bad |= (u64){index} >= (u64)({self.writer.index(size)});")
        self.writer.line(f"const i64 {name} = (u64){index} >= (u64)({self.writer.index(size)}) ? 0 : {index};")
        return name

    def _check_position(self, instr: Instr, position: str) -> None:
        self.writer.checks_bounds = True
        if (position, instr.attr) not in self.checked:
            self._check(position, instr.attr)

    def _store(self, instr: Instr, args: tuple[str, ...], *, outer: bool) -> None:
        line = self.writer.line
        if instr.op == "indirect_store":
            place = self._indirect(instr.attr, args[1:])
            mode = instr.attr[3] if len(instr.attr) > 3 else None
            if mode not in SCATTERS:
                line(f"{place} = {self._in_memory(args[0], instr.dtype)};")
                return
            name = self.writer.fresh()
            line(f"{MEMORY_TYPES[instr.dtype]}& {name} = {place};")
            arguments = (f"({read_memory(name, instr.dtype)})", args[0])
            line(
                f"{name} = {write_memory(f'({expression(SCATTERS[mode], arguments, instr.dtype, instr.dtype)})', instr.dtype)};"
            )
            return
        buffer, index, mode = instr.attr.buffer, instr.attr.index, instr.attr.mode
        local = self.writer.kernel.locals.get(buffer)
        if mode == "add":
            place = self._place(buffer, index)
            old = read_memory(place, instr.dtype)
            line(f"{place} = {write_memory(f'({old} + {args[0]})', instr.dtype)};")
            return
        stored = self.writer.outer_stored if outer else self.inner_stored
        stored[(buffer, index)] = args[0]
        if local is None or (local.is_row and buffer in self.later_reads):
            line(f"{self._place(buffer, index)} = {self._in_memory(args[0], instr.dtype)};")


def why_not_streams(section: Section, parallel: bool) -> str | None:
    """Why the innermost loop is not split into streams, or None."""
    extent = section.axes[-1].extent
    if isinstance(extent, int) and extent < _LONG_ROW:
        return "too short"
    if parallel or not all(member.reduce_axes for member in section.members):
        return "not all members reduce, or threads share the loop"
    bodies = [member.body[: split_at_reduce(member)] for member in section.members]
    if sum(map(len, bodies)) > _LIGHT_BODY:
        return "enough to do while an addition waits"
    for instr in (instr for body in bodies for instr in body):
        if instr.op in ("store", "indirect_store", "indirect_load") or OPS[instr.op].cost >= Cost.DIVIDE:
            return "a store, a read at positions that are data, or an expensive operation"
        if instr.op == "reduce" and instr.attr in POSITIONS:
            return "positions are found one by one"
    return None


def worst(acc: Accumulator) -> str:
    """The value that every other one replaces: for maxima the smallest."""
    is_most = acc.kind in ("max", "argmax")
    if acc.dtype.is_floating_point:
        return constant(float("-inf") if is_most else float("inf"), acc.dtype)
    if acc.dtype is torch.bool:
        return "0" if is_most else "1"
    info = torch.iinfo(acc.dtype)
    return constant(info.min if is_most else info.max, acc.dtype)
