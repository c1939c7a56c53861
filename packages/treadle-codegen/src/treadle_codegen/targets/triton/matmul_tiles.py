"""How a matrix product is cut into blocks: the choices that are measured, and the one that is made without measuring."""

from __future__ import annotations

from dataclasses import dataclass, replace

from treadle_codegen.ir.loops import Axis, IntLike, Loop
from treadle_codegen.ir.product import Product
from treadle_codegen.targets.triton.tiles import next_power_of_2, points

_SMALLEST = 16  # tensor cores take no smaller blocks
MULTIPROCESSORS = 132  # of an H100


@dataclass(frozen=True, slots=True)
class MatmulTiling:
    """One choice: `rows` by `columns` of the result per program, in steps of `depth` terms.

    group: programs next to each other share the columns of so many blocks of rows, which stay in the second-level cache.
    programs: how many programs share all blocks, each taking several one after the other; 0: one program per block.
    """

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int
    group: int = 8
    programs: int = 0

    def __str__(self) -> str:
        several = f" persistent {self.programs}" if self.programs else ""
        return f"{self.rows}x{self.columns}x{self.depth} warps {self.num_warps} stages {self.num_stages}{several}"


# By kind of arithmetic: (rows, columns, depth, warps, stages), largest first.
_TENSOR_CORES_16 = (
    (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3), (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4), (64, 256, 64, 4, 3), (64, 64, 64, 4, 4), (64, 32, 128, 4, 4), (32, 64, 128, 4, 4), (64, 64, 128, 4, 3),
    (32, 32, 128, 2, 4), (16, 128, 64, 4, 5), (16, 64, 128, 4, 5), (16, 32, 256, 2, 4), (64, 16, 128, 4, 4),
)  # fmt: skip
_TENSOR_CORES_32 = (
    (128, 256, 32, 8, 3), (256, 128, 32, 8, 3), (128, 128, 32, 8, 4), (128, 128, 32, 4, 3), (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4), (64, 64, 32, 4, 4), (64, 32, 64, 4, 4), (32, 64, 64, 4, 4), (32, 32, 64, 2, 4),
    (16, 128, 64, 4, 4), (16, 64, 64, 4, 4), (16, 32, 128, 2, 4), (64, 16, 64, 4, 4),
)  # fmt: skip
_FLOAT32 = (
    (128, 128, 16, 8, 3), (128, 64, 16, 8, 3), (64, 128, 16, 8, 3), (64, 64, 16, 4, 3), (64, 64, 32, 4, 3), (64, 32, 32, 4, 3),
    (32, 64, 32, 4, 3), (32, 32, 32, 4, 3), (16, 64, 32, 4, 3), (16, 32, 64, 4, 3), (64, 16, 32, 4, 3),
)  # fmt: skip


def _table(loop: Loop, product: Product) -> list[MatmulTiling]:
    dot = loop.body[product.position]
    kind, dtype = dot.attr, loop.body[dot.args[0]].dtype
    rows = _TENSOR_CORES_16 if dtype.itemsize == 2 else _TENSOR_CORES_32 if kind == "dot_tf32" else _FLOAT32
    return [MatmulTiling(*row) for row in rows]


def matmul_candidates(loop: Loop, product: Product) -> list[MatmulTiling]:
    """The tilings worth measuring; first the one that is taken without measuring."""
    first = default_matmul_tiling(loop, product)
    m, n, k, batch = _sizes(loop, product)
    found = [first]
    for tiling in _table(loop, product):
        if tiling.rows > _at_most(m) or tiling.columns > _at_most(n) or tiling.depth > _at_most(k):
            continue
        if tiling != first:
            found.append(tiling)
        blocks = batch * -(-m // tiling.rows) * -(-n // tiling.columns)
        if blocks > MULTIPROCESSORS and tiling.rows * tiling.columns >= 128 * 128:
            found.append(replace(tiling, programs=MULTIPROCESSORS))
    return found


def _at_most(size: int) -> int:
    """The largest block that is not half empty."""
    return max(next_power_of_2(size), _SMALLEST)


def default_matmul_tiling(loop: Loop, product: Product) -> MatmulTiling:
    """The tiling that is taken without measuring: that of the least estimated time."""
    m, n, k, batch = _sizes(loop, product)
    best: tuple[float, MatmulTiling] | None = None
    for tiling in _table(loop, product):
        blocks = batch * -(-m // tiling.rows) * -(-n // tiling.columns)
        rounds = -(-blocks // MULTIPROCESSORS)
        # Time of one block: its arithmetic, and its operands' way through the caches.
        steps = -(-k // tiling.depth) * tiling.depth
        time = rounds * steps * (tiling.rows * tiling.columns / 128 + tiling.rows + tiling.columns)
        if best is None or time < best[0]:
            best = time, tiling
    assert best is not None
    return best[1]


def _sizes(loop: Loop, product: Product) -> tuple[int, int, int, int]:
    """Rows, columns, terms, batch; 1024 and for the batch 1 where that is not known."""

    def of(axes: tuple[Axis, ...], unknown: int) -> int:
        total: IntLike = points(axes)
        return total if isinstance(total, int) else unknown

    return of(product.rows, 1024), of(product.columns, 1024), of(loop.reduce_axes, 1024), of(product.batch, 1)
