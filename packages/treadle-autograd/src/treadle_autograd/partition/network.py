"""The smallest cut of a network, by SciPy's maximum flow, and a store that keeps cuts for later processes.

    keep_cuts(read, write)          # functions of a key, and of a key and bytes; the store returns the bytes that were written, or None
    source_side(4, {(0, 2): 5, (2, 3): 1, (3, 1): 5})       # {0, 2}: the edge from 2 to 3 is cut

Of all smallest cuts it is the one nearest to the source: what the source reaches in the residual network is the same for every maximum
flow. So it depends on the network alone, whose numbers are the key. Loading SciPy takes longer than most cuts.
"""

from __future__ import annotations

import hashlib
import warnings
from array import array
from collections.abc import Callable, Mapping

# More than all finite capacities together, and within the 32 bits that SciPy's maximum flow computes with.
INFINITE = 2**31 - 1
SOURCE, SINK = 0, 1

Edges = Mapping[tuple[int, int], int]
Read = Callable[[str], bytes | None]
Write = Callable[[str, bytes], None]

_store: tuple[Read, Write] | None = None


def keep_cuts(read: Read, write: Write) -> None:
    """Look for cuts in a store from now on, and write new ones to it."""
    global _store
    _store = read, write


def source_side(size: int, edges: Edges) -> set[int]:
    """The nodes on the side of the source, node 0, of the smallest cut that is nearest to it; node 1 is the sink.

    edges: capacity by (from, to), for nodes below `size`; capacities are positive integers, the finite ones below 2**31 in total.
    """
    if _store is None:
        return _computed(size, edges)
    read, write = _store
    key = _key(size, edges)
    found = _from_bytes(read(key), size)
    if found is not None and why_not_side(found, edges) is None:
        return found
    side = _computed(size, edges)
    write(key, _to_bytes(side, size))
    return side


def why_not_side(side: set[int], edges: Edges) -> str | None:
    """Why the nodes cannot be the source's side of a cut that divides what must not be divided, or None."""
    if SOURCE not in side or SINK in side:
        return "source or sink is on the wrong side"
    for (start, end), capacity in edges.items():
        if capacity == INFINITE and start in side and end not in side:
            return f"the edge from {start} to {end} is infinite"
    return None


def _computed(size: int, edges: Edges) -> set[int]:
    # SciPy adds a filter, and the program that is compiled may depend on which there are.
    with warnings.catch_warnings():
        import numpy as np
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    rows, columns = zip(*edges, strict=True)
    capacities = csr_matrix((np.array(list(edges.values()), np.int32), (rows, columns)), shape=(size, size))
    residual = capacities - maximum_flow(capacities, SOURCE, SINK).flow
    residual.data = (residual.data > 0).astype(np.int32)
    residual.eliminate_zeros()
    return set(breadth_first_order(residual, SOURCE, return_predecessors=False).tolist())


def _key(size: int, edges: Edges) -> str:
    numbers = array("q", [size])
    for (start, end), capacity in edges.items():
        numbers.extend((start, end, capacity))
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def _to_bytes(side: set[int], size: int) -> bytes:
    return bytes([k in side for k in range(size)])


def _from_bytes(data: bytes | None, size: int) -> set[int] | None:
    return {k for k, inside in enumerate(data) if inside} if data is not None and len(data) == size else None
