"""Triton text of a matrix product and of what follows it point by point.

One program computes a block of the result: it walks along the terms, multiplies blocks of the two operands, and runs the
loops behind the product on the block of sums, which stands in registers. Axes of rows, of columns and of the batch may be
several each, in any order in memory.
"""

from __future__ import annotations

from treadle_codegen.ir.loops import IntLike, Loop
from treadle_codegen.ir.ops import PRODUCTS
from treadle_codegen.ir.product import Product, is_product, product_of
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.triton.body_writer import BodyWriter, Dim, index_dim, program_id
from treadle_codegen.targets.triton.matmul_tiles import MatmulTiling
from treadle_codegen.targets.triton.ops import VALUE_TYPES
from treadle_codegen.targets.triton.section import SectionWriter
from treadle_codegen.targets.triton.tiles import points

_PRECISION = {"dot": "ieee", "dot_tf32": "tf32"}
assert _PRECISION.keys() == PRODUCTS


def product_in(kernel: Kernel) -> tuple[Loop, Product] | None:
    """The matrix product with which a kernel begins, if it is one."""
    loop = kernel.loops[0]
    if not is_product(loop):
        return None
    found = product_of(loop)
    assert isinstance(found, Product), found
    return loop, found


def write_matmul(writer: BodyWriter, loop: Loop, product: Product, tiling: MatmulTiling) -> list[tuple[IntLike, int]]:
    """Write the kernel's body; returns the grid as (points, block) per dimension."""
    writer.constants |= {"YBLOCK": tiling.rows, "XBLOCK": tiling.columns, "KBLOCK": tiling.depth}
    down, across = -(-points(product.rows) // tiling.rows), -(-points(product.columns) // tiling.columns)
    total = down * across * points(product.batch)
    writer.line(f"program = {program_id(writer, 0)}")
    if tiling.programs:
        writer.line(f"for block in range(program, {writer.index(total)}, {tiling.programs}):")
        writer.depth += 1
    else:
        writer.line("block = program")
    _place(writer, product, down, across, tiling.group)
    y = index_dim(writer, "y", product.rows, "YBLOCK", "[:, None]")
    x = index_dim(writer, "x", product.columns, "XBLOCK", "[None, :]")
    writer.add_dim(y, "row * YBLOCK + ")
    writer.add_dim(x, "column * XBLOCK + ")
    write_behind(writer, _sum(writer, loop, product, y, x), product.position, y, x)
    return [
        (min(tiling.programs, total) if isinstance(total, int) and tiling.programs else tiling.programs or total, 1)
    ]


def write_behind(writer: BodyWriter, sums: str, position: int, y: Dim, x: Dim) -> None:
    """Write what happens to a block of sums, which are the result at `position` of the kernel's first loop. It ends the body."""
    writer.dims = {"y": y, "x": x}
    for k, section in enumerate(writer.kernel.sections):
        section_writer = SectionWriter(writer, section, k)
        section_writer.results[(0, position)] = sums
        section_writer.write_after_reduction()
    writer.depth = 1


def _place(writer: BodyWriter, product: Product, down: IntLike, across: IntLike, group: int) -> None:
    """Which block this is. Blocks next to each other in time share operands: they go down `group` rows, then to the next column."""
    if product.batch:
        writer.line(f"blocks = {writer.index(down * across)}")
        writer.line("batch = block // blocks")
        writer.line("block_of_matrix = block % blocks")
        writer.split_index("batch", product.batch)  # the same in the whole block
    else:
        writer.line("block_of_matrix = block")
    if down == 1 or across == 1:
        one, other = ("row", "column") if down == 1 else ("column", "row")
        writer.line(f"{one} = 0")
        writer.line(f"{other} = block_of_matrix")
        return
    writer.line(f"group_size = {writer.index(across * group)}")
    writer.line(f"first = block_of_matrix // group_size * {group}")
    writer.line(f"height = tl.minimum({writer.index(down)} - first, {group})")
    writer.line("row = first + block_of_matrix % group_size % height")
    writer.line("column = block_of_matrix % group_size // height")


def _sum(writer: BodyWriter, loop: Loop, product: Product, y: Dim, x: Dim) -> str:
    """The loop along the terms; returns the name of the sums."""
    dot = loop.body[product.position]
    name = writer.fresh()
    writer.line(f"{name} = tl.full([YBLOCK, XBLOCK], 0, tl.float32)")
    writer.line(f"for k_start in range(0, {writer.index(points(loop.reduce_axes))}, KBLOCK):")
    writer.depth += 1
    rows, columns = dot.args
    k = index_dim(writer, "ka", loop.reduce_axes, "KBLOCK", "[None, :]")
    writer.dims = {"y": y}
    writer.add_dim(k, "k_start + ")
    left = operand(writer, loop, rows, k)
    k = index_dim(writer, "kb", loop.reduce_axes, "KBLOCK", "[:, None]")
    writer.dims = {}
    writer.add_dim(k, "k_start + ")
    writer.dims["x"] = x
    right = operand(writer, loop, columns, k)
    writer.line(f'{name} = add_product({name}, {left}, {right}, "{_PRECISION[dot.attr]}")')
    writer.depth -= 1
    writer.value_dims[name] = frozenset("yx")
    return name


def operand(writer: BodyWriter, loop: Loop, position: int, k: Dim) -> str:
    """A block of one operand; it is 0 in lanes behind the last term."""
    section = SectionWriter(writer, writer.kernel.sections[0], 0, fill=0.0)
    value = section.value(loop, position)
    instr = loop.body[position]
    while instr.op == "cast":
        instr = loop.body[instr.args[0]]
    if k.mask is not None and instr.op != "load":
        name = writer.fresh()
        zero = f"tl.full([1], 0, {VALUE_TYPES[loop.body[position].dtype]})"
        writer.line(f"{name} = tl.where({k.mask}, {value}, {zero})")
        writer.value_dims[name] = writer.value_dims[value]
        value = name
    return writer.spread(value, frozenset(writer.dims))
