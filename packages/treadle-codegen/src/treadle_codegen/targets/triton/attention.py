"""Triton text of attention: one program computes what a block of queries makes of all keys and values.

The scores of a block of keys stand in registers, and so do, for each query, the largest score so far (`top`), the sum of the exponentials
below it (`total`) and the sum of the values weighted by these (`sums`). A larger score scales both sums down (`prelude.softmax_step`).

Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", 2023, algorithm 1.
"""

from __future__ import annotations

from treadle_codegen.ir.attention import Attention, attention_of, is_attention
from treadle_codegen.ir.loops import IntLike, Loop
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_codegen.targets.triton.attention_tiles import AttentionTiling
from treadle_codegen.targets.triton.body_writer import BodyWriter, Dim, index_dim, program_id
from treadle_codegen.targets.triton.key_range import bounds_of_keys
from treadle_codegen.targets.triton.matmul import operand, write_behind
from treadle_codegen.targets.triton.section import SectionWriter
from treadle_codegen.targets.triton.tiles import points


def attention_in(kernel: Kernel) -> tuple[Loop, Attention] | None:
    """The attention with which a kernel begins, if it is one."""
    loop = kernel.loops[0]
    if not is_attention(loop):
        return None
    found = attention_of(loop)
    assert isinstance(found, Attention), found
    return loop, found


class _ScoreWriter(SectionWriter):
    """Writes what happens to the scores, whose sums have the name `name` already."""

    def __init__(self, writer: BodyWriter, section: Section, inner: int, name: str) -> None:
        super().__init__(writer, section, 0, fill=0.0)
        self.inner, self.name = inner, name

    def _written(self, m: int, loop: Loop, k: int, names: dict[int, str], *, outer: bool) -> str:
        return self.name if k == self.inner else super()._written(m, loop, k, names, outer=outer)


def write_attention(
    writer: BodyWriter, loop: Loop, attention: Attention, tiling: AttentionTiling
) -> list[tuple[IntLike, int]]:
    """Write the kernel's body; returns the grid as (points, block) per dimension."""
    writer.constants |= {
        "YBLOCK": tiling.rows, "XBLOCK": tiling.columns, "KBLOCK": tiling.keys, "EBLOCK": tiling.terms,
    }  # fmt: skip
    down = -(-points(attention.rows) // tiling.rows)
    writer.line(f"block = {program_id(writer, 0)}")
    writer.line(f"row = block % ({writer.index(down)})")
    writer.line(f"batch = block // ({writer.index(down)})")
    if attention.batch:
        writer.split_index("batch", attention.batch)  # the same in the whole block
    y = index_dim(writer, "y", attention.rows, "YBLOCK", "[:, None]")
    x = index_dim(writer, "x", attention.columns, "XBLOCK", "[None, :]")
    writer.add_dim(y, "row * YBLOCK + ")
    writer.add_dim(x, "")
    write_behind(writer, _weighted_sum(writer, loop, attention, y, x), attention.position, y, x)
    return [(down * points(attention.batch), 1)]


def _weighted_sum(writer: BodyWriter, loop: Loop, attention: Attention, y: Dim, x: Dim) -> str:
    """The loop along the keys; returns the name of the result."""
    inner, reduction = loop.body[attention.inner], loop.body[attention.position]
    queries = _block(writer, loop, inner.args[0], {"y": y}, _dim(writer, attention, "ea", "[None, :]"), "")
    top, total, sums = "top", "total", "sums"
    for name, shape, first in (
        (top, "[YBLOCK, 1]", "float('-inf')"),
        (total, "[YBLOCK, 1]", "0.0"),
        (sums, "[YBLOCK, XBLOCK]", "0.0"),
    ):
        writer.line(f"{name} = tl.full({shape}, {first}, tl.float32)")
    first, last = _key_range(writer, loop, attention)
    writer.line(f"for k_start in range({first}, {last}, KBLOCK):")
    writer.depth += 1
    writer.dims = {}
    writer.add_dim(_dim(writer, attention, "eb", "[:, None]"), "")
    across = index_dim(writer, "ka", attention.keys, "KBLOCK", "[None, :]")
    keys = _block(writer, loop, inner.args[1], dict(writer.dims), across, "k_start + ")
    products = writer.fresh()
    writer.line(f"{products} = inner_product({queries}, {keys})")
    writer.dims = {"y": y, "k": across}
    writer.value_dims[products] = frozenset("yk")
    scores = _ScoreWriter(writer, writer.kernel.sections[0], attention.inner, products).value(loop, reduction.args[0])
    scores = writer.spread(scores, frozenset("yk"))
    if across.mask is not None:
        scores = f"tl.where({across.mask}, {scores}, float('-inf'))"
    down = index_dim(writer, "kb", attention.keys, "KBLOCK", "[:, None]")
    writer.dims = {}
    writer.add_dim(down, "k_start + ")
    writer.dims["x"] = x
    values = operand(writer, loop, reduction.args[1], down)
    writer.line(f"{top}, {total}, {sums} = softmax_step({top}, {total}, {sums}, {scores}, {values})")
    writer.depth -= 1
    name = writer.fresh()
    writer.line(f"{name} = weighted_mean({total}, {sums}, {reduction.attr == 'safe_softmax_dot'})")
    count = points(attention.keys)
    if not isinstance(count, int):  # the sum of no values is 0, whatever the softmax of no scores
        writer.line(f"{name} = tl.where({writer.index(count)} == 0, 0.0, {name})")
    writer.value_dims[name] = frozenset("yx")
    return name


def _key_range(writer: BodyWriter, loop: Loop, attention: Attention) -> tuple[str, str]:
    """From the first to behind the last key that the block of queries sees."""
    first, last = "0", writer.index(points(attention.keys))
    for bound in bounds_of_keys(loop, attention):
        (row,) = attention.rows
        end = writer.fresh()
        if (bound.step > 0) == bound.is_upper:
            writer.line(f"{end} = tl.minimum(row * YBLOCK + YBLOCK, {writer.index(row.extent)}) - 1")
        else:
            writer.line(f"{end} = row * YBLOCK")
        names = writer.names[row.symbol]
        writer.names[row.symbol] = end
        value = writer.fresh()
        if bound.is_upper:
            writer.line(f"{value} = tl.minimum({last}, {writer.index(bound.value)} + 1)")
            last = value
        else:
            writer.line(f"{value} = tl.maximum({first}, {writer.index(bound.value)}) // KBLOCK * KBLOCK")
            first = value
        writer.names[row.symbol] = names
    return first, last


def _dim(writer: BodyWriter, attention: Attention, name: str, suffix: str) -> Dim:
    return index_dim(writer, name, (attention.terms,), "EBLOCK", suffix)


def _block(writer: BodyWriter, loop: Loop, position: int, dims: dict[str, Dim], along: Dim, start: str) -> str:
    """A block of one factor of the scores."""
    writer.dims = dims
    writer.add_dim(along, start)
    return operand(writer, loop, position, along)
