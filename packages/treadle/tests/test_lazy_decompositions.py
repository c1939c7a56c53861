"""The decompositions of treadle_codegen are those of its table, whenever they are read."""

from __future__ import annotations

import torch

from treadle.lazy_decompositions import LazyDecompositions
from treadle_codegen import decompositions


def test_they_are_those_of_the_code_generator():
    lazy, known = LazyDecompositions(), decompositions()
    assert dict(lazy) == known and len(lazy) == len(known) > 0
    op = next(iter(known))
    assert lazy[op] is lazy.get(op) is known[op]
    assert op in lazy
    assert lazy.get(torch.ops.aten.mm.default) is None and torch.ops.aten.mm.default not in lazy
