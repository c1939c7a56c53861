"""Triton text of a kernel's body: index variables, sections, their members' instructions, reductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from treadle_codegen.ir.loops import Instr, IntLike, Load, Loop, symbols_of
from treadle_codegen.ir.ops import POSITIONS
from treadle_codegen.ir.product import index_of
from treadle_codegen.schedule.access import axis_ranges
from treadle_codegen.schedule.kernel import Section
from treadle_codegen.targets.instructions import InstructionWriter
from treadle_codegen.targets.renderer import const_key, split_at_reduce
from treadle_codegen.targets.triton.body_writer import NO_DIMS, BodyWriter, Dim, Dims, index_dim
from treadle_codegen.targets.triton.dense import place
from treadle_codegen.targets.triton.eviction import eviction
from treadle_codegen.targets.triton.neighbours import neighbours
from treadle_codegen.targets.triton.ops import VALUE_TYPES, cast, constant, expression, literal
from treadle_codegen.targets.triton.strided import StridedLoads
from treadle_codegen.targets.triton.tiles import points
from treadle_shapes.expr import Range, bounds

_IDENTITY = {"sum": 0, "prod": 1, "any": False, "all": True}
_COMBINE = {"sum": "{0} + {1}", "prod": "{0} * {1}", "any": "{0} | {1}", "all": "{0} & {1}"}
_INDEX_DTYPES = {"tl.int32": torch.int32, "tl.int64": torch.int64}


@dataclass(slots=True)
class _Accumulator:
    """One `reduce` instruction: its kind, the running values (and positions) of a row walked in steps, its result.

    leader: another reduction of the same values, which has this one's result, too.
    """

    kind: str
    dtype: torch.dtype  # of the reduced values
    name: str
    leader: _Accumulator | None = None

    @property
    def value_dtype(self) -> torch.dtype:
        return torch.int8 if self.kind in POSITIONS and self.dtype is torch.bool else self.dtype

    @property
    def value_type(self) -> str:
        return VALUE_TYPES[self.value_dtype]


class SectionWriter(InstructionWriter):
    """Writes one section; made for one use. `row`: an earlier section over the same row, whose values are still there;
    `fill`: what loads give in lanes that are no points."""

    def __init__(
        self,
        writer: BodyWriter,
        section: Section,
        position: int,
        row: SectionWriter | None = None,
        fill: float | None = None,
    ) -> None:
        super().__init__(writer)
        self.writer = writer
        self.section = section
        self.position = position
        self.fill = fill
        self.all_checked = all(loop.is_checked for loop in section.members)
        self.is_whole = writer.tiling is not None and bool(writer.tiling.whole) and writer.tiling.whole[position]
        self.known_row = row
        if row is not None:
            self.inner_values, self.inner_stored = row.inner_values, row.inner_stored
        self.carries: dict[int, str] = {}  # the running totals of the steps before, by the identity of the scan
        self.accumulators: dict[tuple[int, int], _Accumulator] = {}
        self.strided = StridedLoads(writer, section.axes, section.members)
        self.dim: Dim | None = row.dim if row else None
        self.names: dict[Any, str] = row.names if row else {}

    def write_straight(self) -> None:
        """A section whose space is the grid's."""
        for m, loop in enumerate(self.section.members):
            self._instructions(m, loop, 0, len(loop.body), outer=True)

    def write_after_reduction(self) -> None:
        """What follows the reductions of its loops, whose results are known, and loops without any."""
        for m, loop in enumerate(self.section.members):
            self._instructions(m, loop, split_at_reduce(loop), len(loop.body), outer=True)

    def value(self, loop: Loop, position: int) -> str:
        """The name of the value of an instruction of its first loop, written here."""
        return self._value(0, loop, position, {}, outer=False)

    def write(self) -> None:
        writer, axes = self.writer, self.section.axes
        if not axes:
            writer.dims.pop("r", None)
            self.write_straight()
            return
        name, block = f"r{self.position}", f"RBLOCK{self.position}"
        assert writer.tiling is not None
        if self.known_row is None:
            writer.constants[block] = writer.tiling.steps[self.position]
        self._collect()
        if self.is_whole:
            if self.known_row is None:
                self.dim = index_dim(writer, name, axes, block, "[None, :]")
                writer.add_dim(self.dim, "")
                self.names = {a.symbol: writer.names[a.symbol] for a in axes}
            else:
                assert self.dim is not None
                writer.dims["r"] = self.dim
                writer.names |= self.names
                writer.ranges |= axis_ranges(axes)
            self._members()
        else:
            running: dict[str, tuple[str, torch.dtype]] = {}
            for acc in self._leaders():
                running[acc.name] = (literal(_identity(acc), acc.dtype), acc.value_dtype)
                if acc.kind in POSITIONS:
                    running[f"{acc.name}_p"] = (self._behind(), _INDEX_DTYPES[writer.index_type])
            self._open_scans()
            self.open_steps(running)
            self._members()
            self.close_steps()
            for acc in self._leaders():
                self._reduce(acc, acc.name, f"{acc.name}_p")
        for acc in self.accumulators.values():
            if acc.leader is not None:
                suffix = "" if acc.kind == acc.leader.kind else "_v"
                writer.line(f"{acc.name} = {acc.leader.name}{suffix}")
        writer.dims.pop("r", None)
        for (m, k), acc in self.accumulators.items():
            if writer.has_numbers:
                writer.line(f"{acc.name} = only_value({acc.name})")
            self.results[(m, k)] = acc.name
            writer.value_dims[acc.name] = frozenset("x")
        for m, loop in enumerate(self.section.members):
            if loop.reduce_axes:
                self._instructions(m, loop, split_at_reduce(loop), len(loop.body), outer=True)

    def open_steps(self, running: dict[str, tuple[str, torch.dtype]]) -> None:
        """Begin a walk along the row in steps; `running`: variables that go through it, with first value and dtype."""
        writer, axes, name = self.writer, self.section.axes, f"r{self.position}"
        block = f"RBLOCK{self.position}"
        assert writer.tiling is not None
        writer.constants[block] = writer.tiling.steps[self.position]
        for variable, (first, dtype) in running.items():
            writer.line(f"{variable} = tl.full([XBLOCK, {block}], {first}, {VALUE_TYPES[dtype]})")
        writer.line(f"for {name}_start in range(0, {writer.index(points(axes))}, {block}):")
        writer.depth += 1
        self.dim = index_dim(writer, name, axes, block, "[None, :]")
        writer.add_dim(self.dim, f"{name}_start + ")

    def close_steps(self) -> None:
        self.writer.depth -= 1
        self.writer.dims.pop("r")

    def _members(self) -> None:
        for m, loop in enumerate(self.section.members):
            end = split_at_reduce(loop) if loop.reduce_axes else len(loop.body)
            self._instructions(m, loop, 0, end, outer=False)

    # -- reductions and scans

    def _open_scans(self) -> None:
        for loop in self.section.members:
            for instr in loop.body:
                if instr.op == "scan":
                    name = self.carries[id(instr)] = self.writer.fresh()
                    first = literal(_IDENTITY[instr.attr], instr.dtype)
                    self.writer.line(f"{name} = tl.full([XBLOCK, 1], {first}, {VALUE_TYPES[instr.dtype]})")

    def _scan(self, instr: Instr, value: str) -> str:
        """The name of the running totals of a block, those of the steps before included."""
        writer, full = self.writer, frozenset("xr")
        value = writer.spread(value, full)
        name, carry = writer.fresh(), self.carries.get(id(instr))
        writer.value_dims[name] = full
        writer.line(f"{name} = scan_{instr.attr}({value})")
        if carry is not None:
            combined = _COMBINE[instr.attr].format(carry, name)
            writer.line(f"{name} = ({combined}).to({VALUE_TYPES[instr.dtype]})")
            writer.line(f"{carry} = last_column({name})")
        return name

    def _collect(self) -> None:
        leaders: dict[Any, _Accumulator] = {}
        numbers: dict[Any, int] = {}  # equal for values that are computed in the same way from the same elements
        members = [(m, loop, _numbered(loop, numbers)) for m, loop in enumerate(self.section.members)]
        for positions in (True, False):  # a position is found together with the value there
            for m, loop, number in members:
                for k, instr in enumerate(loop.body):
                    if instr.op != "reduce" or (instr.attr in POSITIONS) is not positions:
                        continue
                    dtype = loop.body[instr.args[0]].dtype
                    acc = self.accumulators[(m, k)] = _Accumulator(instr.attr, dtype, self.writer.fresh())
                    values = tuple([number[a] for a in instr.args])
                    acc.leader = leaders.setdefault((values, instr.attr), acc)
                    if acc.leader is acc:
                        acc.leader = None
                        if positions and dtype is not torch.bool:
                            leaders.setdefault((values, POSITIONS[instr.attr]), acc)

    def _leaders(self) -> list[_Accumulator]:
        return [acc for acc in self.accumulators.values() if acc.leader is None]

    def _behind(self) -> str:
        """A position behind all others."""
        return str(torch.iinfo(_INDEX_DTYPES[self.writer.index_type]).max)

    def _accumulate(self, acc: _Accumulator, value: str) -> None:
        """Take the values of one step into account; for a whole row, its result."""
        writer, dim = self.writer, self.dim
        if acc.leader is not None:
            return
        assert dim is not None
        full = frozenset("xr")
        if acc.kind in POSITIONS and acc.dtype is torch.bool:
            value = f"{value}.to(tl.int8)"
        value = writer.spread(value, full)
        if dim.mask is not None and acc.kind not in POSITIONS:
            value = f"tl.where({dim.mask}, {value}, {constant(_identity(acc), acc.dtype)})"
        if acc.kind in POSITIONS:
            position = f"tl.broadcast_to({dim.name}, {writer.shape(full)}).to({writer.index_type})"
            if dim.mask is not None:
                # A lane outside must not win, not even against values that are all the worst there is.
                name = writer.fresh()
                worst = f"tl.full([1], {literal(_identity(acc), acc.dtype)}, {acc.value_type})"
                writer.line(f"{name} = tl.where({dim.mask}, {value}, {worst})")
                value, position = name, f"tl.where({dim.mask}, {position}, {self._behind()})"
            if self.is_whole:
                self._reduce(acc, value, position)
                return
            better, new = writer.fresh(), writer.fresh()
            writer.line(f"{new} = {value}")
            writer.line(f"{new}_p = {position}")
            first = f"({acc.name}_p == {self._behind()})"  # even the worst value comes before none at all
            writer.line(f"{better} = is_better_{POSITIONS[acc.kind]}({new}, {acc.name}) | {first}")
            writer.line(f"{acc.name} = tl.where({better}, {new}, {acc.name})")
            writer.line(f"{acc.name}_p = tl.where({better}, {new}_p, {acc.name}_p)")
        elif self.is_whole:
            self._reduce(acc, value, "")
        else:
            combined = _combine(acc).format(acc.name, value)
            writer.line(f"{acc.name} = ({combined}).to({acc.value_type})")

    def _reduce(self, acc: _Accumulator, value: str, positions: str) -> None:
        if acc.kind in POSITIONS:
            self.writer.line(f"{acc.name}_v, {acc.name} = reduce_{acc.kind}({value}, {positions})")
        else:
            self.writer.line(f"{acc.name} = reduce_{_kind(acc)}({value})")

    # -- instructions

    def _stored(self, load: Load, *, outer: bool) -> str | None:
        """As for all languages; a local buffer has no memory, and its value was stored in registers."""
        if load.buffer in self.writer.kernel.locals:
            return self.writer.local_values[load.buffer]
        return super()._stored(load, outer=outer)

    def _define(self, loop: Loop, instr: Instr, args: tuple[str, ...], *, outer: bool) -> str:
        if instr.op == "scan":
            return self._scan(instr, args[0])
        text, dims = self._text(loop, instr, args, outer=outer)
        for arg in args:
            dims |= self.writer.value_dims[arg]
        name = self.writer.fresh()
        self.writer.line(f"{name} = {text}")
        self.writer.value_dims[name] = dims
        if instr.op == "index":
            self.writer.expressions[name] = instr.attr
            self.writer.intervals[name] = bounds(instr.attr, self.writer.ranges)
        known = [self.writer.value_symbols.get(arg) for arg in args]
        if instr.op != "reduce" and None not in known:
            self.writer.value_symbols[name] = symbols_of(index_of(instr)).union(*filter(None, known))
        return name

    def _text(self, loop: Loop, instr: Instr, args: tuple[str, ...], *, outer: bool) -> tuple[str, Dims]:
        """The text of a value, and the dimensions along which it varies beside those of its arguments."""
        writer, op, dtype = self.writer, instr.op, instr.dtype
        if op == "load" and (taken := self.strided.value(instr.attr)) is not None:
            return taken, writer.dims_of(instr.attr.index)
        if op == "load":
            other = None if self.fill is None else literal(self.fill, dtype)
            return self._load(instr.attr, writer.dims_of(instr.attr.index), None, other)
        if op == "masked_load":
            load, condition, other = instr.attr
            stored = self._stored(load, outer=outer)
            dims = writer.dims_of(load.index, condition)
            if stored is not None:
                text = f"tl.where({writer.index(condition)}, {stored}, {constant(other, dtype)})"
                return text, dims | writer.value_dims[stored]
            return self._load(load, dims, writer.index(condition), literal(other, dtype))
        if op == "indirect_load":
            return self._indirect_load(instr, args), NO_DIMS
        if op == "const":
            return constant(instr.attr, dtype), NO_DIMS
        if op == "index":
            if isinstance(instr.attr, int):
                return constant(instr.attr, torch.int64), NO_DIMS
            return f"({writer.index(instr.attr)}).to(tl.int64)", writer.dims_of(instr.attr)
        if op == "scalar":
            return f"tl.full([1], {writer.names[instr.attr]}, tl.float64)", NO_DIMS
        arg_dtype = loop.body[instr.args[0]].dtype
        if op == "cast":
            return cast(args[0], arg_dtype, dtype), NO_DIMS
        return expression(op, args, dtype, arg_dtype, approximately=writer.approximately), NO_DIMS

    def _load(self, load: Load, dims: Dims, condition: str | None, other: str | None) -> tuple[str, Dims]:
        writer = self.writer
        mask = writer.mask(dims)
        if condition is not None:
            mask = f"{mask} & ({condition})" if mask else condition
        at = place(writer, load.index)
        if condition is not None and dims != writer.dims_of(load.index):
            at = self._spread(load.index, dims)  # a block of conditions needs a block of addresses
        extra = "" if mask is None else f", {mask}"
        if other is not None and mask is not None:
            extra += f", other={other}"
        policy = eviction(writer.kernel, writer.tiling, self.position, load) if "r" in dims else None
        if policy is not None:
            extra += f', eviction_policy="{policy}"'
        return f"tl.load({writer.param(load.buffer)} + {_grouped(at)}{extra})", dims

    def _indirect(self, attr: tuple[Any, ...], indices: tuple[str, ...]) -> tuple[str, str | None, Dims]:
        """(pointer, mask, dimensions) of an access through indices, which are checked against the sizes."""
        writer = self.writer
        buffer, strides, sizes = attr[:3]
        dims: Dims = frozenset().union(*[writer.value_dims[i] for i in indices])
        mask = writer.mask(dims)
        terms = []
        for index, stride, size in zip(indices, strides, sizes, strict=True):
            if not self.all_checked:
                self._require(index, size, mask)
            terms.append(f"{index} * ({writer.index(stride)})")
        offset = f"({' + '.join(terms) or '0'})"
        return f"{writer.param(buffer)} + {neighbours(writer, offset, dims, indices, strides)}", mask, dims

    def _require(self, index: str, size: IntLike, mask: str | None) -> None:
        """Have the call fail where a position that is data is out of range."""
        writer = self.writer
        if _may_be_outside(writer.intervals.get(index), size):
            writer.checks_bounds = True
            inside = f"({index} >= 0) & ({index} < {writer.index(size)})"
            writer.line(f"require_index({f'({inside}) | ~({mask})' if mask else inside})")

    def _check_position(self, instr: Instr, position: str) -> None:
        self._require(position, instr.attr, self.writer.mask(self.writer.value_dims[position]))

    def _indirect_load(self, instr: Instr, args: tuple[str, ...]) -> str:
        pointer, mask, _ = self._indirect(instr.attr, args)
        return f"tl.load({pointer}{'' if mask is None else ', ' + mask})"

    def _store(self, instr: Instr, args: tuple[str, ...], *, outer: bool) -> None:
        writer = self.writer
        everything: Dims = frozenset(writer.dims)
        if instr.op == "indirect_store":
            pointer, _, dims = self._indirect(instr.attr, args[1:])
            mode = instr.attr[3] if len(instr.attr) > 3 else None
            if dims != everything:
                buffer, _, offset = pointer.partition(" + ")
                pointer = f"{buffer} + tl.broadcast_to({offset}, {writer.shape(everything)})"
            self._write(pointer, args[0], mode)
            return
        buffer, index, mode = instr.attr.buffer, instr.attr.index, instr.attr.mode
        if mode is None:
            stored = writer.outer_stored if outer else self.inner_stored
            stored[(buffer, index)] = args[0]
            if buffer in writer.kernel.locals:
                writer.local_values[buffer] = args[0]
                return
        whole = writer.dims_of(index) == everything
        at = place(writer, index) if whole else self._spread(index, everything)
        self._write(f"{writer.param(buffer)} + {_grouped(at)}", args[0], mode)

    def _spread(self, index: IntLike, dims: Dims) -> str:
        """An index as a block along `dims`, whatever it varies along."""
        shape = self.writer.shape(dims)
        if isinstance(index, int):
            return f"tl.full({shape}, {index}, {self.writer.index_type})"
        return f"tl.broadcast_to({self.writer.index(index)}, {shape})"

    def _write(self, pointer: str, value: str, mode: str | None) -> None:
        mask = self.writer.mask(frozenset(self.writer.dims))
        extra = "" if mask is None else f", {mask}"
        if mode == "add":
            everything = frozenset(self.writer.dims)
            value = self.writer.spread(value, everything)
            self.writer.line(f"atomic_add({pointer}, {value}{extra})")
        else:
            self.writer.line(f"tl.store({pointer}, {value}{extra})")


def _may_be_outside(found: Range | None, size: IntLike) -> bool:
    """Whether a position may be negative or beyond `size`; `found`: the limits of its value, if any are known."""
    if found is None or not isinstance(found.lower, int) or not isinstance(found.upper, int):
        return True
    return not isinstance(size, int) or found.lower < 0 or found.upper >= size


def _numbered(loop: Loop, numbers: dict[Any, int]) -> list[int]:
    """A number for the value of each instruction of a loop."""
    found: list[int] = []
    for instr in loop.body:
        key = instr.op, instr.dtype, const_key(instr), tuple([found[a] for a in instr.args])
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def _grouped(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _kind(acc: _Accumulator) -> str:
    if acc.dtype is torch.bool:
        return {"max": "any", "min": "all"}.get(acc.kind, acc.kind)
    return acc.kind


def _combine(acc: _Accumulator) -> str:
    kind = _kind(acc)
    if kind in _COMBINE:
        return _COMBINE[kind]
    name = {"max": "maximum", "min": "minimum"}[kind]
    return f"float_{name}({{0}}, {{1}})" if acc.dtype.is_floating_point else f"tl.{name}({{0}}, {{1}})"


def _identity(acc: _Accumulator) -> object:
    """The value that changes no result; for max and argmax, the smallest."""
    kind = _kind(acc)
    if kind in _IDENTITY:
        return _IDENTITY[kind]
    largest = kind in ("max", "argmax")
    if acc.dtype.is_floating_point:
        return float("-inf") if largest else float("inf")
    if acc.dtype is torch.bool:
        return 0 if largest else 1
    info = torch.iinfo(acc.dtype)
    return info.min if largest else info.max
