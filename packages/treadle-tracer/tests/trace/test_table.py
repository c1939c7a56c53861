"""Every opcode of the running CPython has one handler, and no table of the tracer has an entry twice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import treadle_tracer
from treadle_tracer.bytecode import OPS
from treadle_tracer.errors import InternalError
from treadle_tracer.tables import by_name, disjoint
from treadle_tracer.trace.table import HANDLERS
from treadle_tracer.values.construct import CONSTRUCTORS
from treadle_tracer.values.rules.table import ALL_RULES

SOURCES = sorted(Path(treadle_tracer.__file__).parent.rglob("*.py"))


def test_every_opcode_has_a_handler():
    assert set(OPS) - set(HANDLERS) == set()


def test_an_entry_given_twice_is_refused():
    assert by_name(("a b", 1), ("c", 2)) == {"a": 1, "b": 1, "c": 2}
    with pytest.raises(InternalError, match="'b' stands for 1 and for 2"):
        by_name(("a b", 1), ("b", 2))
    with pytest.raises(InternalError, match="'a' stands for 1 and for 2"):
        disjoint({"a": 1}, {"b": 1}, {"a": 2})


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_dict_display_repeats_a_key(source):
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            keys = [ast.dump(key) for key in node.keys if key is not None]
            assert len(keys) == len(set(keys)), f"line {node.lineno}"


def test_a_class_has_a_constructor_or_a_rule_but_not_both():
    assert not any(rule.function in CONSTRUCTORS for rule in ALL_RULES)
