"""The C++ renderer: kernels become `static` functions of raw pointers, segments become exported functions of one table."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from treadle_codegen.ir.loops import Axis, Buffer, FloatExpr, IntLike, Program
from treadle_codegen.options import CodegenOptions
from treadle_codegen.schedule.access import axis_ranges, loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel, LocalBuffer, Section
from treadle_codegen.schedule.positions import checks_positions
from treadle_codegen.targets.cpp.build import compile_flags
from treadle_codegen.targets.cpp.chunks import MOST_LANES, ChunkPrinter, rows_with_tails, why_not_chunks
from treadle_codegen.targets.cpp.columns import column_printer, why_not_columns
from treadle_codegen.targets.cpp.load_unit import load_unit, threads_of
from treadle_codegen.targets.cpp.numbers import render_numbers
from treadle_codegen.targets.cpp.ops import C_TYPES, MEMORY_TYPES, constant
from treadle_codegen.targets.cpp.section import SectionPrinter
from treadle_codegen.targets.cpp.segments import segment_text
from treadle_codegen.targets.cpp.short_axes import ShortAxisPrinter, why_not_across_rows
from treadle_codegen.targets.cpp.short_rows import ShortRowPrinter, open_rows, why_not_short_rows
from treadle_codegen.targets.cpp.size_powers import powers_of_sizes
from treadle_codegen.targets.cpp.strips import StripPrinter, why_not_strips
from treadle_codegen.targets.cpp.tiles import TilePrinter, why_not_tiles
from treadle_codegen.targets.cpp.tiling import DEFAULT, CppTiling, candidates
from treadle_codegen.targets.cpp.turned import turn_definitions
from treadle_codegen.targets.cpp.vector_fmod import fmod_definitions
from treadle_codegen.targets.cpp.vector_halves import half_definitions
from treadle_codegen.targets.cpp.vector_math import definitions
from treadle_codegen.targets.rebase import rebased
from treadle_codegen.targets.renderer import NumberGroup, RenderedKernel, Segment, function_name, numbers_of
from treadle_codegen.targets.structure import renamed, structure_of
from treadle_shapes.expr import BoolExpr, Expr, Range, Symbol, simplify, to_cpp

PRELUDE = Path(__file__).with_name("prelude.hpp")
_PARALLEL_WORK = 1 << 14  # fewer points than this are not worth waking threads for


@dataclass(slots=True)
class KernelWriter:
    """Text of one kernel under construction: parameters by buffer, and lines."""

    kernel: Kernel
    buffers: dict[str, Buffer]
    threads: int
    tiling: CppTiling = DEFAULT
    uses: set[str] = field(default_factory=set)  # choices of the tiling that the text depends on
    lines: list[str] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    rows: dict[str, str] = field(
        default_factory=dict
    )  # parameters for the memory of local buffers too long for an array
    written: set[str] = field(default_factory=set)
    ranges: dict[Symbol, Range] = field(default_factory=dict)
    is_narrowed: bool = False
    tails: dict[str, int] = field(
        default_factory=dict
    )  # rows, with the lanes of their chunks, whose last, partial chunk has a place of its own
    checks_bounds: bool = False
    why_not_constant: str | None = None  # why results might depend on which of the numbers are constants
    depth: int = 1
    values: int = 0
    names: dict[Any, str] = field(
        default_factory=dict
    )  # parameters for the numbers, the same for any numbering of symbols
    powers: dict[Any, str] = field(default_factory=dict)  # parts of indices that are computed once per call
    seen: set[Any] = field(default_factory=set)  # expressions without further powers
    from_bools: set[str] = field(default_factory=set)  # values that are computed from bools as numbers
    packed: set[str] = field(default_factory=set)  # values whose 16 bits in memory have a name: theirs with an h
    short_floats: set[str] = field(default_factory=set)  # values that are bfloat16 numbers
    positions: dict[str, IntLike] = field(default_factory=dict)  # values that are index expressions
    outer_values: dict[Any, str] = field(default_factory=dict)  # value numbering at the outer level
    outer_stored: dict[tuple[str, IntLike], str] = field(default_factory=dict)  # buffer element -> name of its value

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def fresh(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def param(self, buffer: str) -> str:
        """The parameter (or local array) that stands for a buffer."""
        if buffer in self.kernel.locals:
            return self.params.setdefault(buffer, f"l{len(self.params)}")
        return self.params.setdefault(buffer, f"b{len(self.params)}")

    def row_param(self, buffer: str) -> str:
        """The parameter for the memory of a buffer of which rows stay inside where they fit."""
        return self.rows.setdefault(buffer, f"{self.param(buffer)}m")

    def index(self, e: IntLike) -> str:
        return str(e) if isinstance(e, int) else self.condition(e)

    def condition(self, e: Any) -> str:
        e = simplify(e, self.ranges) if self.is_narrowed else e
        if self.names and isinstance(e, (Expr, BoolExpr)):
            for power in powers_of_sizes(e, self.names, self.seen):
                self.powers[power] = f"s{len(self.powers)}"
        return to_cpp(e, self.ranges, self.names | self.powers if self.powers else self.names)

    @contextlib.contextmanager
    def narrowed(self, symbol: Symbol, values: Range) -> Iterator[None]:
        """What is written inside is for these values of a loop's symbol only."""
        whole = self.ranges[symbol]
        self.ranges[symbol], self.is_narrowed = values, True
        yield
        self.ranges[symbol], self.is_narrowed = whole, False

    def open_loop(self, axis: Axis) -> None:
        name = axis.symbol.name
        self.line(f"for (i64 {name} = 0; {name} < {self.index(axis.extent)}; ++{name}) {{")
        self.depth += 1

    def close(self, count: int) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")


class Parts(NamedTuple):
    """A kernel's text in two parts: parameters become constants in front of the body when it is specialised."""

    parameters: tuple[str, ...]
    body: str
    attributes: str = ""


class CppRenderer:
    """C++ that the compiler vectorises, with OpenMP over outer loops when there is more than one thread."""

    shares_constants = True

    def __init__(self, options: CodegenOptions) -> None:
        self.options = options
        self.threads = threads_of(options)
        self.parallel = self.threads > 1
        self.prelude = _prelude()
        self._rendered: dict[Any, tuple[RenderedKernel, tuple[str, ...]]] = {}  # by structure: it, and its buffers

    def render_kernel(self, kernel: Kernel, program: Program, choice: Any = None) -> RenderedKernel:
        """The text of one kernel. `choice`: a `CppTiling`."""
        kernel, bases = rebased(kernel)
        structure, buffers = structure_of(kernel, program)
        known = self._rendered.get((structure, choice))
        if known is None:
            rendered = self._render(kernel, program, choice or DEFAULT)
            self._rendered[(structure, choice)] = rendered, buffers
        else:
            rendered, others = known
            rendered = replace(rendered, buffers=renamed(rendered.buffers, others, buffers), label=kernel.name)
        if kernel.literals:
            rendered = replace(rendered, literals=kernel.literals)
        return replace(rendered, bases=tuple([bases.get(b, 0) for b in rendered.buffers])) if bases else rendered

    def _render(self, kernel: Kernel, program: Program, tiling: CppTiling) -> RenderedKernel:
        writer = self._written(kernel, program, tiling)
        numbers = tuple(writer.names)
        parameters = {b: p for b, p in writer.params.items() if b not in kernel.locals} | writer.rows
        memory = tuple(parameters)
        shared = _shared(program, memory)
        arguments = [_parameter(writer, b, parameters[b], b in shared) for b in memory]
        arguments += [f"{'double' if isinstance(n, FloatExpr) else 'i64'} {writer.names[n]}" for n in numbers]
        arguments += [f"{C_TYPES[dtype]} c{k}" for k, (_, dtype) in enumerate(kernel.literals)]
        if writer.checks_bounds:
            arguments.append("i64* err")
            writer.lines.insert(0, "  int bad = 0;")
            writer.lines.append("  if (bad) *err = 1;")
        writer.lines[:0] = [f"  const i64 {name} = {to_cpp(e, {}, writer.names)};" for e, name in writer.powers.items()]
        body = "\n".join(writer.lines) + "\n"
        text = _function_text(arguments, body)
        bits = writer.tiling.vector_bits
        attributes = f'PREFER_VECTORS("prefer-vector-width={bits}") ' if bits else ""
        return RenderedKernel(
            *(function_name(attributes + text), text, memory, numbers, writer.checks_bounds, kernel.name),
            *(Parts(tuple(arguments), body, attributes), writer.why_not_constant),
        )

    def _written(self, kernel: Kernel, program: Program, tiling: CppTiling) -> KernelWriter:
        writer = KernelWriter(kernel, program.buffers, self.threads, tiling)
        writer.ranges = axis_ranges(kernel.outer)
        writer.written = {a.buffer for loop in kernel.loops for a in loop_writes(loop)}
        for number in numbers_of(kernel):
            writer.names[number] = f"{'d' if isinstance(number, FloatExpr) else 'n'}{len(writer.names)}"
        _write_body(writer)
        return writer

    def candidates(self, kernel: Kernel, program: Program) -> list[CppTiling]:
        """The tilings of a kernel that are worth measuring; first the one that is taken without measuring."""
        uses = frozenset(self._written(kernel, program, DEFAULT).uses)
        return candidates(kernel, uses, "-mprefer-vector-width=512" in compile_flags(self.threads))

    def specialise(self, kernel: RenderedKernel, values: Mapping[Any, int | float]) -> RenderedKernel:
        """`i64 n0` as a parameter becomes `constexpr i64 n0 = 49;` in front of the same body."""
        fixed = kernel.constants(values)
        if not fixed:
            return kernel
        first = len(kernel.buffers)  # of the parameters that are numbers
        parameters, constants = list(kernel.parts.parameters), ""
        for k, number in reversed(list(enumerate(kernel.numbers, first))):
            if number in fixed:
                literal = constant(values[number], torch.float64 if isinstance(number, FloatExpr) else torch.int64)
                constants = f"  constexpr {parameters.pop(k)} = {literal};\n{constants}"
        body = constants + kernel.parts.body
        text = _function_text(parameters, body)
        return replace(
            kernel,
            function=function_name(kernel.parts.attributes + text),
            text=text,
            numbers=tuple([n for n in kernel.numbers if n not in fixed]),
            parts=Parts(tuple(parameters), body, kernel.parts.attributes),
        )

    def render_numbers(self, group: NumberGroup, program: Program) -> RenderedKernel | None:
        """A function of doubles. The host's table is in the memory that kernels read."""
        return render_numbers(group, program.buffers)

    def render_unit(self, segments: Sequence[Segment], slots: dict[str, int], buffers: dict[str, Buffer]) -> str:
        """The translation unit: the prelude, every distinct kernel once, and one exported function per segment."""
        parts = [self.prelude]
        seen: set[str] = set()
        for segment in segments:
            for kernel in segment.kernels:
                if kernel.function not in seen:
                    seen.add(kernel.function)
                    attributes = kernel.parts.attributes if kernel.parts is not None else ""
                    parts.append(f"KERNEL {attributes}void {kernel.function}{kernel.text}")
        kernels = "".join(parts[1:])
        parts[1:1] = [
            definitions(kernels),
            fmod_definitions(kernels),
            half_definitions(kernels),
            turn_definitions(kernels),
        ]
        for segment in segments:
            parts.append(segment_text(segment, slots, buffers))
        return "\n".join(parts)

    def load(
        self, source: str, names: Sequence[str], *, background: bool = False
    ) -> tuple[dict[str, Callable[..., Any]], bool]:
        """Build and load: entry points by name, and whether the library came from the cache."""
        return load_unit(self.options, source, names, background=background)


@functools.cache
def _prelude() -> str:
    return PRELUDE.read_text()


def _function_text(parameters: Sequence[str], body: str) -> str:
    return f"({', '.join(parameters)}) {{\n{body}}}\n"


def _shared(program: Program, memory: Sequence[str]) -> set[str]:
    """The buffers among a kernel's that are one memory with another of them."""
    pairs = [pair for pair in program.in_place.items() if pair[0] in memory and pair[1] in memory]
    return {name for pair in pairs for name in pair}


def _parameter(writer: KernelWriter, buffer: str, name: str, is_shared: bool) -> str:
    const = "" if buffer in writer.written else "const "
    restrict = "" if is_shared else "__restrict__ "
    return f"{const}{MEMORY_TYPES[writer.buffers[buffer].dtype]}* {restrict}{name}"


def _work(kernel: Kernel) -> int:
    total = 1
    for axis in kernel.outer:
        total *= axis.extent if isinstance(axis.extent, int) else 1 << 10
    inner = 0
    for section in kernel.sections:
        points = 1
        for axis in section.axes:
            points *= axis.extent if isinstance(axis.extent, int) else 1 << 10
        inner += points
    return total * max(inner, 1)


def _write_body(writer: KernelWriter) -> None:
    kernel = writer.kernel
    parallel = writer.threads > 1 and _work(kernel) >= _PARALLEL_WORK
    bad = " reduction(|:bad)" if any(map(checks_positions, kernel.loops)) else ""
    columns = why_not_columns(kernel) is None
    if columns:
        writer.uses.add("columns")
        columns = writer.tiling.columns
    short_rows = not columns and why_not_short_rows(kernel) is None
    outer = kernel.outer[:-1] if columns or short_rows else kernel.outer
    for k, axis in enumerate(outer):
        if k == 0 and parallel:
            collapse = f" collapse({len(outer)})" if len(outer) > 1 else ""
            writer.line(f"#pragma omp parallel for num_threads({writer.threads}){collapse}{bad}")
        writer.open_loop(axis)
    if short_rows:
        open_rows(writer, parallel=parallel and not outer)
    later_reads = _read_in_later_sections(kernel)
    tails = writer.tiling.chunks and not columns and not short_rows
    found = rows_with_tails(kernel, parallel=parallel) if tails else {}
    writer.tails = {name: lanes for name, lanes in found.items() if name in later_reads}
    for name, local in kernel.locals.items():
        if name in later_reads and local.is_row:
            _declare_row(writer, name, local)
    if columns:
        column_printer(writer, later_reads, parallel=parallel and not outer).write()
    for section in kernel.sections if short_rows else ():
        ShortRowPrinter(writer, section, later_reads, parallel=False).write()
    for section in () if columns or short_rows else kernel.sections:
        over_section = parallel and not kernel.outer and not any(m.reduce_axes for m in section.members)
        _printer_of(writer, section, parallel=over_section)(writer, section, later_reads, parallel=over_section).write()
    writer.close(len(outer) + short_rows)


def _printer_of(writer: KernelWriter, section: Section, *, parallel: bool) -> type[SectionPrinter]:
    if why_not_chunks(writer.kernel, section, parallel=parallel) is None:
        writer.uses.add("chunks")
        if writer.tiling.chunks:
            return ChunkPrinter
    if why_not_tiles(writer.kernel, section) is None:
        writer.uses.add("tile")
        if writer.tiling.tile:
            return TilePrinter
    if why_not_strips(section) is None:
        return StripPrinter
    return ShortAxisPrinter if why_not_across_rows(section) is None else SectionPrinter


def _declare_row(writer: KernelWriter, buffer: str, local: LocalBuffer) -> None:
    """The array of a row that stays inside the kernel; a row of unknown length that does not fit one lies in memory."""
    ctype, name = MEMORY_TYPES[writer.buffers[buffer].dtype], writer.param(buffer)
    lanes = writer.tails.get(buffer)
    if local.most is None:
        assert isinstance(local.length, int)
        writer.line(f"alignas(64) {ctype} {name}[{_whole_chunks(local.length)}];")
        if lanes is not None:
            writer.line(f"{ctype}* const {name}t = {name} + {local.length // lanes * lanes};")
        return
    writer.line(f"alignas(64) {ctype} {name}a[{_whole_chunks(local.most)}];")
    row = f"{writer.row_param(buffer)} + {writer.index(local.row)}"
    length = writer.index(local.length)
    writer.line(f"{ctype}* __restrict__ const {name} = {length} <= {local.most} ? {name}a : {row};")
    if lanes is not None:
        writer.line(f"alignas(64) {ctype} {name}s[{lanes}];")
        writer.line(
            f"{ctype}* const {name}t = {length} <= {local.most} ? {name}a + (({length}) & ~{lanes - 1}LL) : {name}s;"
        )


def _whole_chunks(length: int) -> int:
    return -(-length // MOST_LANES) * MOST_LANES


def _read_in_later_sections(kernel: Kernel) -> set[str]:
    """Buffers that some section reads after an earlier section wrote them."""
    written: set[str] = set()
    found: set[str] = set()
    for section in kernel.sections:
        found |= written & {a.buffer for loop in section.members for a in loop_reads(loop)}
        written |= {a.buffer for loop in section.members for a in loop_writes(loop)}
    return found
