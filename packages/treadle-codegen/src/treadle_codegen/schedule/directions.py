"""Large buffers are walked to and fro: a kernel begins where the one before it ended.

The end of a buffer that exceeds the cache is what the cache still holds of it. A kernel that reads the buffer from its end finds that part
there; one that reads it from its beginning finds nothing, and evicts the end before it gets there.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle_codegen.costs import Costs
from treadle_codegen.ir.attention import multiplies_tiles
from treadle_codegen.ir.loops import Program
from treadle_codegen.lower.indexing import product
from treadle_codegen.schedule.fuse import Node
from treadle_codegen.schedule.kernel import Kernel


def alternate_directions(program: Program, nodes: Sequence[Node], costs: Costs) -> None:
    """Choose `Kernel.is_backward` for the kernels of nodes in their order. Operators are taken to walk forward."""
    if not costs.cached_bytes:
        return
    sizes = {name: size for name in program.buffers if (size := _bytes(program, name)) > costs.cached_bytes}
    last: dict[str, bool] = {}  # whether the buffer was walked backward
    for node in nodes:
        touched = (node.reads | node.writes) & sizes.keys()
        is_backward = False
        if isinstance(node.item, Kernel) and not multiplies_tiles(node.item.loops[0]):
            known = sorted(
                [name for name in node.reads & touched if name in last], key=lambda name: (-sizes[name], name)
            )
            is_backward = bool(known) and not last[known[0]]
            node.item.is_backward = is_backward
        last |= dict.fromkeys(touched, is_backward)


def _bytes(program: Program, name: str) -> int:
    """Bytes of a buffer's elements; 0 where that is not known while compiling."""
    buffer = program.buffers[name]
    elements = product(buffer.shape)
    return elements * buffer.dtype.itemsize if isinstance(elements, int) else 0
