"""Keys of numbers in the table that entry points read."""

from __future__ import annotations

from treadle_codegen.targets.table_slots import slot_key
from treadle_shapes.expr import symbol
from treadle_shapes.floats import float_symbol


def test_keys_of_numbers_tell_integers_from_doubles() -> None:
    assert slot_key(symbol("s0")) == "s0"
    assert slot_key(float_symbol("f0")) == "double f0"
    assert slot_key(symbol("s0") + 1).startswith("int ")
