"""Declarations of operator families: what they refuse, and the queries over them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes import UsageError  # noqa: E402
from treadle_shapes.torch.operators import declare  # noqa: E402

aten = torch.ops.aten
declare.load_families()


def test_a_family_is_declared_once():
    for twice in ("squeeze", "T"):
        with pytest.raises(UsageError, match=f"'{twice}' is declared twice"):
            declare.family(twice)
    with pytest.raises(UsageError, match="Operator has no such fields"):
        declare.family("something_new", colour="blue")


def test_what_is_refused_leaves_no_declaration():
    before = dict(declare.DECLARED), dict(declare.ALSO)
    with pytest.raises(UsageError):
        declare.family("something_new", also="T")
    with pytest.raises(UsageError):
        declare.family("something_new", overloads={"default": {"colour": "blue"}})
    assert (declare.DECLARED, declare.ALSO) == before


def test_overloads_by_their_correction():
    assert aten.slice.Tensor in declare.corrected_by("sizes of slices")
    assert aten.view.default in declare.corrected_by("view strides")
    assert declare.corrected_by("no such correction") == []


def test_facts_of_overloads_count_for_their_family():
    assert "squeeze" in declare.families_with("kind")
    assert declare.families_with("no such fact") == frozenset()
