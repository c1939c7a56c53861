"""Which loads ask the caches to keep what they read: rows that are walked in steps, more than once.

    for steps of the row:  maximum of x    tl.load(..., eviction_policy="evict_last")     the next walk reads it again
    for steps of the row:  sum of exp(x)   tl.load(..., eviction_policy="evict_last")
    for steps of the row:  store           tl.load(..., eviction_policy="evict_first")    nothing does any more

Without hints rows of programs that begin take the place of what those under way come back to.
"""

from __future__ import annotations

from treadle_codegen.ir.loops import Load
from treadle_codegen.schedule.access import loop_reads
from treadle_codegen.schedule.kernel import Kernel, Section
from treadle_codegen.targets.triton.tiles import Tiling


def eviction(kernel: Kernel, tiling: Tiling | None, position: int, load: Load) -> str | None:
    """The policy of a load in the section of that position; None for the usual one."""
    if tiling is None or not tiling.whole or tiling.whole[position]:
        return None
    walks = [k for k, section in enumerate(kernel.sections) if not tiling.whole[k] and _reads(section, load)]
    axes = kernel.sections[position].axes
    walks = [k for k in walks if kernel.sections[k].axes == axes]
    if len(walks) < 2 or position not in walks:
        return None
    return "evict_first" if position == walks[-1] else "evict_last"


def _reads(section: Section, load: Load) -> bool:
    place = load.buffer, load.index
    return any((read.buffer, read.index) == place for loop in section.members for read in loop_reads(loop))
