"""`breaks.toml` lists exactly the codes that the sources raise, each with an explanation and hints. Needs no torch."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import treadle_tracer
from treadle_tracer.errors import InternalError, Unsupported, break_table

SOURCE = Path(treadle_tracer.__file__).parent


def raised_codes() -> set[str]:
    """Codes given to `Unsupported(...)` and to the helpers that make handlers and rules raising it."""
    codes: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            position = {"Unsupported": 0, "_unsupported": 0, "breaks": 1}.get(name)
            if position is not None and isinstance(node.args[position], ast.Constant):
                codes.add(node.args[position].value)
    return codes


def test_every_code_that_is_raised_is_explained():
    assert raised_codes() - set(break_table()) == set()


def test_every_explained_code_is_raised():
    assert set(break_table()) - raised_codes() == set()


@pytest.mark.parametrize("code", sorted(break_table()))
def test_explanations_are_sentences_and_hints_exist(code):
    info = break_table()[code]
    assert re.fullmatch(r"[A-Z].*\.", info.explanation, re.DOTALL)
    assert info.hints
    assert all(re.fullmatch(r"[A-Z].*\.", hint, re.DOTALL) for hint in info.hints)


def test_an_unlisted_code_is_our_bug():
    with pytest.raises(InternalError, match="not listed"):
        Unsupported("no-such-code", "x")


def test_the_text_names_code_context_and_stack():
    error = Unsupported("output", "print", (("/f.py", 3, "g"),))
    assert str(error).startswith("output: ")
    assert "print" in str(error)
    assert 'File "/f.py", line 3, in g' in str(error)
