"""Mappings from code objects: by identity, without keeping them alive."""

from __future__ import annotations

import gc

from treadle_tracer.code_map import CodeMap


def code_of(name="f"):
    namespace = {}
    exec(f"def {name}(): pass", namespace)
    return namespace[name].__code__


def test_equal_code_objects_are_different_keys():
    first, second = code_of(), code_of()
    assert first == second and first is not second
    found = CodeMap()
    found[first] = 1
    assert found.get(first) == 1 and found.get(second) is None
    assert first in found and second not in found
    found[second] = 2
    assert (found.get(first), found.get(second), len(found)) == (1, 2, 2)
    assert sorted(found.values()) == [1, 2]


def test_a_value_goes_with_its_code():
    found = CodeMap()
    code = code_of()
    found[code] = "value"
    del code
    gc.collect()  # the function and its globals
    assert len(found) == 0 and list(found.values()) == []


def test_a_value_is_replaced_and_cleared():
    found, code = CodeMap(), code_of()
    found[code] = 1
    found[code] = 2
    assert found.get(code) == 2 and len(found) == 1
    found.clear()
    assert code not in found
