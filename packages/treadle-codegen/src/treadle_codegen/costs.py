"""The numbers by which lowering, fusion and memory planning choose; every target states its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from treadle_codegen.ir.ops import Cost


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost constants of one target. The defaults suit any machine that computes faster than it reads memory.

    Arithmetic is counted in multiples of one addition per element (`ir.ops.Cost`).

    recompute: an expression up to this cost is recomputed by each reader instead of being stored.
    max_expression: an expression beyond this cost is stored in pieces, because its values run out of registers.
    max_reads: the same for an expression that reads more buffers than this.
    max_unrolled: a reduction over at most so many elements becomes one expression of them.
    max_window: a pooling window with more elements than this is left to ATen.
    min_reordered: a result with fewer elements keeps its layout, in whatever order its operands are read.
    small_reduction: reductions of up to so many elements over equal spaces share a kernel even if they read nothing in common; 0: never.
    fusion_window: how many nodes back fusion looks for a kernel that a loop can join.
    max_row: a row with more elements is not passed from one section of a kernel to the next.
    reordered_row: a loop takes its axes in another order to share a kernel with a reduction over at most so many elements; 0: never.
    held_row: a kernel reads a row of up to this many elements once, however many reductions and results need it; 0: as often as they do.
    moments_across: whether rows that lie across each other in memory, as the groups of channels-last images do, have their moments computed
        of those of single columns.
    wide_moments: whether variances are computed in float64, as ATen does on CPUs: squares of floats beyond 1e19 are no floats.
    tiled_points: a loop over at least so many points that reads across the axis that it writes along stands alone, so that it walks memory
        in tiles; 0: never.
    min_parallel: with several workers, a kernel should have at least so many shared outer points, ...
    max_serial: ... unless one worker has at most so many points to compute.
    select_in_cat: at most so many tensors are concatenated by choosing for each element, in the expression that reads the result.
    split_work: a reduction is split among workers that would have nothing to do otherwise, so many elements for each; 0: never.
    scatters_in_order: whether a loop that writes at positions that are data visits its points one after the other, and checks the positions
        before it writes.
    atomic_adds: elsewhere, scatters are loops where points may come in any order, and sums only of these dtypes.
    cached_bytes: what the cache that all workers share holds; larger buffers are walked to and fro (`schedule.directions`); 0: only forth.
    overwritten_bytes: a loop leaves out what another one writes over where that saves so many bytes for each kernel more; 0: never.
    scans: whether loops compute running totals.
    vector_products: whether loops multiply a matrix by a vector.
    small_products: whether loops multiply small matrices.
    alignment: bytes to which buffers in the arena are aligned.
    seconds_per_kernel: what compiling one kernel takes, where it was not measured.
    """

    recompute: int = int(Cost.DIVIDE)
    max_expression: int = 40 * int(Cost.TRANSCENDENTAL)
    max_reads: int = 12
    max_unrolled: int = 4
    max_window: int = 25
    min_reordered: int = 1024
    small_reduction: int = 0
    fusion_window: int = 24
    max_row: int = 1 << 16
    reordered_row: int = 0
    held_row: int = 0
    moments_across: bool = False
    wide_moments: bool = False
    tiled_points: int = 0
    min_parallel: int = 2
    max_serial: int = 1 << 14
    select_in_cat: int = 0
    split_work: int = 0
    scatters_in_order: bool = False
    atomic_adds: frozenset[torch.dtype] = frozenset()
    cached_bytes: int = 0
    overwritten_bytes: int = 0
    scans: bool = False
    vector_products: bool = False
    small_products: bool = False
    alignment: int = 64
    seconds_per_kernel: float = 0.1
