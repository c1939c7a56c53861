"""Values are compared, hashed, replaced and pickled by their fields."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest

from treadle_codegen.ir.loops import Load, Store
from treadle_codegen.ir.value_class import value_class


def test_values_are_their_fields():
    one, other = Load("x", 3), Load("x", 3)
    assert one == other and hash(one) == hash(other) and one is not other
    assert one != Load("x", 4) and Store("x", 3) != one
    assert replace(one, index=4) == Load("x", 4)
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)
    assert repr(one) == "Load(buffer='x', index=3)"
    assert is_dataclass(Load) and [f.name for f in fields(Store)] == ["buffer", "index", "mode"]


def test_only_the_type_checker_keeps_them_from_being_changed():
    @value_class
    class Value:
        number: int

    value = Value(1)
    try:
        value.number = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    except FrozenInstanceError:
        pytest.fail("the check costs as much as the object")
    with pytest.raises(AttributeError):
        value.other = 3  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
