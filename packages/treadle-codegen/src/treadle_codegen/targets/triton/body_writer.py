"""Text of one Triton kernel under construction: the dimensions of its blocks, its index variables, the values in scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from treadle_codegen.ir.loops import Axis, Buffer, IntLike, symbols_of
from treadle_codegen.schedule.access import axis_ranges
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.triton.tiles import Tiling, is_flat, points
from treadle_shapes.expr import Range, Symbol, to_triton

Dims = frozenset[str]
NO_DIMS: Dims = frozenset()


@dataclass(slots=True)
class Dim:
    """One dimension of the blocks: its index variable, its axes, and which lanes of it are points of the space.

    Where blocks divide the last axis, all points of a block have the same places on the others, which are numbers then.
    """

    name: str  # of the index variable; its first letter names the dimension
    axes: tuple[Axis, ...]
    block: str  # the constexpr with its length
    suffix: str  # what makes the index variable stand in its dimension
    mask: str | None  # the variable of the mask, where some lanes lie outside
    in_one_row: bool = False  # whether blocks divide the last axis

    @property
    def varying(self) -> tuple[Axis, ...]:
        """The axes along which the points of a block differ."""
        return self.axes[-1:] if self.in_one_row else self.axes


@dataclass(slots=True)
class BodyWriter:
    """Text of one kernel under construction.

    params: parameters by buffer; names: texts for symbols; ranges: their limits; constants: block sizes by constexpr.
    dims: the dimensions in scope, by letter, in the order of the block's shape; starts: where their blocks begin;
    value_dims: along which of them a value varies.
    expressions: values that are index expressions; value_symbols: of which axes a value depends, as far as that is known.
    outer_values, outer_stored: see `InstructionWriter`; local_values: the value of each local buffer.
    approximately: whether approximations of functions will do (`precision`).
    """

    kernel: Kernel
    buffers: dict[str, Buffer]
    tiling: Tiling | None  # None for a matrix product
    index_type: str  # "tl.int32" or "tl.int64"
    lines: list[str] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    ranges: dict[Symbol, Range] = field(default_factory=dict)
    intervals: dict[str, Range] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    value_dims: dict[str, Dims] = field(default_factory=dict)
    expressions: dict[str, IntLike] = field(default_factory=dict)
    value_symbols: dict[str, frozenset[Symbol]] = field(default_factory=dict)
    outer_values: dict[Any, str] = field(default_factory=dict)
    outer_stored: dict[tuple[str, IntLike], str] = field(default_factory=dict)
    local_values: dict[str, str] = field(default_factory=dict)
    checks_bounds: bool = False
    approximately: bool = False
    depth: int = 1
    values: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def param(self, buffer: str) -> str:
        """The parameter that stands for a buffer's memory."""
        return self.params.setdefault(buffer, f"b{len(self.params)}")

    def index(self, e: Any) -> str:
        return str(e) if isinstance(e, int) else to_triton(e, self.ranges, self.names)

    def dims_of(self, *expressions: Any) -> Dims:
        """The dimensions along which expressions over the axes vary."""
        symbols = symbols_of(list(expressions))
        return frozenset(
            [name for name, dim in self.dims.items() if not symbols.isdisjoint([a.symbol for a in dim.varying])]
        )

    def shape(self, dims: Dims) -> str:
        """The shape of a block that varies along `dims`."""
        lengths = [dim.block if name in dims else "1" for name, dim in self.dims.items()]
        if len(lengths) < self.rank:
            lengths.append("1")  # rows outside of a walk along their columns
        return f"[{', '.join(lengths)}]"

    def spread(self, value: str, dims: Dims) -> str:
        """A value as a block along `dims`; `value`: the name of one that varies along some of them, or a call of its method.

        What varies along none is a number or a block of one element, depending on where it comes from, and Triton
        broadcasts no block to one of more dimensions but in operations.
        """
        own = self.value_dims[value.partition(".")[0]]
        if own == dims:
            return value
        if not own:
            return f"tl.where(tl.full({self.shape(dims)}, 1, tl.int1), {value}, {value})"
        return f"tl.broadcast_to({value}, {self.shape(dims)})"

    @property
    def rank(self) -> int:
        """How many dimensions all blocks of the kernel have, in scope or not."""
        is_line = self.tiling is not None and is_flat(self.kernel) and not self.tiling.columns
        return 1 if is_line else 2

    @property
    def has_numbers(self) -> bool:
        """Whether results of reductions are numbers: a program has one row, and its sections differ, and so do layouts of their blocks."""
        if self.tiling is None or self.tiling.rows != 1:
            return False
        return len({section.axes for section in self.kernel.sections if section.axes}) > 1

    def mask(self, dims: Dims) -> str | None:
        """The condition that holds in the lanes of a block along `dims` that are points; None if all are."""
        masks = [dim.mask for name, dim in self.dims.items() if name in dims and dim.mask is not None]
        return " & ".join(masks) if masks else None

    def add_dim(self, dim: Dim, start: str) -> None:
        """Write the index variable of a dimension, its mask, and the variables of its axes."""
        self.dims[dim.name[0]], self.starts[dim.name[0]] = dim, start.removesuffix(" + ")
        length = self.index(points(dim.axes))
        wide = ".to(tl.int64)" if self.index_type == "tl.int64" else ""  # products with strides need all of its bits
        lanes = f"tl.arange(0, {dim.block}){wide}{dim.suffix}"
        if dim.in_one_row:
            self._add_row(dim, start, lanes)
            return
        self.line(f"{dim.name} = {start}{lanes}")
        if dim.mask is not None:
            self.line(f"{dim.mask} = {dim.name} < {length}")
        self.split_index(dim.name, dim.axes)

    def _add_row(self, dim: Dim, start: str, lanes: str) -> None:
        """The variables of a dimension whose blocks lie in one row of its last axis each."""
        last, at = dim.axes[-1], f"{dim.name}_at"
        self.line(f"{at} = {self.starts[dim.name[0]]}")
        self.line(f"{dim.name} = {at} + {lanes}")
        self.ranges |= axis_ranges(dim.axes)
        name = self.names[last.symbol] = f"{last.symbol.name}_{dim.name}"
        self.line(f"{dim.name}_row = {at} // {last.extent}")
        # Not a remainder: of that, Triton (3.6) knows no divisor, and reads element by element.
        self.line(f"{name} = {at} - {dim.name}_row * {last.extent} + {lanes}")
        self.split_index(f"{dim.name}_row", dim.axes[:-1])

    def split_index(self, variable: str, axes: tuple[Axis, ...]) -> None:
        """Write the variables of axes whose points are numbered by `variable`, the last axis fastest."""
        self.ranges |= axis_ranges(axes)
        rest = variable
        for k in range(len(axes) - 1, -1, -1):
            axis = axes[k]
            name = self.names[axis.symbol] = f"{axis.symbol.name}_{variable}"
            extent = self.index(1 if axis.extent == 0 else axis.extent)  # no lane is a point then
            if k == 0:
                self.line(f"{name} = {rest}")
            else:
                self.line(f"{name} = {rest} % ({extent})")
                self.line(f"{rest}_{k} = {rest} // ({extent})")
                rest = f"{rest}_{k}"


def program_id(writer: BodyWriter, axis: int) -> str:
    """The number of this program in a dimension of the grid, as an index."""
    wide = ".to(tl.int64)" if writer.index_type == "tl.int64" else ""
    if writer.kernel.is_backward:
        return f"(tl.num_programs({axis}) - 1 - tl.program_id({axis})){wide}"
    return f"tl.program_id({axis}){wide}"


def index_dim(writer: BodyWriter, name: str, axes: tuple[Axis, ...], block: str, suffix: str) -> Dim:
    """A dimension over the axes; lanes behind their last point are masked."""
    total, length, last = points(axes), writer.constants[block], axes[-1].extent if axes else 1
    full = isinstance(total, int) and total > 0 and total % length == 0
    in_one_row = len(axes) > 1 and full and isinstance(last, int) and last % length == 0
    return Dim(name, axes, block, suffix, None if full else f"{name}m", in_one_row)
