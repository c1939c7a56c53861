from __future__ import annotations

import torch

from treadle_autograd.decompositions import decompose_composite

aten = torch.ops.aten


def test_operators_that_others_define_decompose():
    x = torch.randn(3)
    square = decompose_composite(aten.square.default)
    assert square is not None and torch.equal(square(x), x * x)
    assert decompose_composite(aten.relu.default) is None


def test_operators_of_other_namespaces():
    with torch.library._scoped_library("treadle_test_decompositions", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        library.impl("opaque", lambda x: x * 2, "CPU")
        ops = torch.ops.treadle_test_decompositions
        assert decompose_composite(ops.twice.default) is not None
        assert decompose_composite(ops.opaque.default) is None
