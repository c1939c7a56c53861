"""Facts that follow from a schema, its tags and its dispatch keys."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import Cost, Kind  # noqa: E402
from treadle_shapes.torch.operators.derive import cost_of, from_schema  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (aten.select.int, Kind.VIEW),
        (aten.split.Tensor, Kind.VIEW),
        (aten.rand.default, Kind.RANDOM),
        (aten.dropout.default, Kind.RANDOM),
        (aten.add.Tensor, Kind.POINTWISE),
        (aten.sum.default, Kind.REDUCTION),
        (aten.permute_copy.default, Kind.COPY),
        (aten._assert_async.default, Kind.EFFECT),
        (aten.mm.default, None),
    ],
    ids=str,
)
def test_kinds(op, kind):
    assert from_schema(op).get("kind") is kind


def test_aliases_and_writes():
    assert from_schema(aten.select.int)["aliases"] == ((0, "self"),)
    assert from_schema(aten.split.Tensor)["aliases"] == ((0, "self"),)  # of a list, whose elements are views
    added = from_schema(aten.add_.Tensor)
    assert added["writes"] == ("self",) and added["aliases"] == ((0, "self"),) and not added["is_pure"]
    assert from_schema(aten.add.out)["writes"] == ("out",)
    assert from_schema(aten.add.Tensor)["is_pure"] and not from_schema(aten.rand.default)["is_pure"]


def test_tags_and_dispatch_keys():
    assert from_schema(aten.nonzero.default)["has_data_dependent_size"]
    assert from_schema(aten.matmul.default)["is_composite"] and not from_schema(aten.mm.default)["is_composite"]


def test_every_kind_has_a_cost():
    assert all(isinstance(cost_of(kind), Cost) for kind in Kind)
