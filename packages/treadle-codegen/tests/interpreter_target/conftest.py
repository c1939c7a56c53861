"""The tests of this folder compile for the second target wherever they name none."""

from __future__ import annotations

import pytest
from interpreter_target.interpreter_target import INTERPRETER

from treadle_codegen import compile_graph
from treadle_codegen.targets.table import TARGETS


@pytest.fixture(autouse=True)
def second_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, INTERPRETER.name, INTERPRETER)
    monkeypatch.setitem(compile_graph.__kwdefaults__, "target", INTERPRETER.name)
