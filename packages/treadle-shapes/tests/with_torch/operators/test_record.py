"""Records: they do not change, and a fact that nobody declared has its default."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import Cost, Kind, Operator, Raises, operator  # noqa: E402


def test_a_record_does_not_change():
    record = operator("add")
    with pytest.raises(AttributeError, match="aten.add cannot be changed"):
        record.kind = Kind.VIEW
    with pytest.raises(AttributeError, match="cannot be changed"):
        del record.kind
    assert record.kind is Kind.POINTWISE and "Kind.POINTWISE" in repr(record)


def test_defaults_claim_nothing():
    record = Operator(name="aten.x", family="x", kind=Kind.OTHER, cost=Cost.HEAVY)
    assert (
        record.raises is Raises.NEVER
        and record.writes == ()
        and not record.is_view
        and dict(record.shape_functions) == {}
    )


def test_records_are_equal_to_themselves_only():
    facts = {"name": "aten.x", "family": "x", "kind": Kind.OTHER, "cost": Cost.HEAVY}
    assert Operator(**facts) != Operator(**facts) and len({Operator(**facts), Operator(**facts)}) == 2
