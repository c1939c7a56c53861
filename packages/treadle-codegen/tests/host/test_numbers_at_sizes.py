"""Numbers that follow from sizes are the same with and without a function for them; the oracle is `evaluate`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treadle_codegen.host.numbers_at_sizes as module
from treadle_codegen.host.numbers_at_sizes import _EVALUATED, NumbersAtSizes
from treadle_shapes import ExpressionTooLargeError
from treadle_shapes.expr import evaluate, symbol

S, T = symbol("s0"), symbol("s1")
EXPRESSIONS = [S, 2 * S, S + T, (S - 1) // 2 + 1, S * T, (S * T) % 7, ((S - 1) // 2) // 2, 5, S - T]


def value(item: Any, sizes: dict[Any, int]) -> Any:
    if isinstance(item, tuple):
        return tuple([value(each, sizes) for each in item])
    return item if isinstance(item, int) else evaluate(item, sizes)


@given(
    st.recursive(st.sampled_from(EXPRESSIONS), lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=_EVALUATED + 3),
)
def test_every_set_of_sizes(item: Any, drawn: list[tuple[int, int]]) -> None:
    template = (item,)
    numbers = NumbersAtSizes((S, T), template)
    for s, t in drawn:
        assert numbers((s, t)) == value(template, {S: s, T: t})


def test_equal_expressions_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[Any]()
    to_python = module.to_python
    monkeypatch.setattr(module, "to_python", lambda e: written.append(e) or to_python(e))
    numbers = NumbersAtSizes((S,), ((2 * S, S), (2 * S, 3), 2 * S))
    for n in range(_EVALUATED + 2):
        assert numbers((n,)) == ((2 * n, n), (2 * n, 3), 2 * n)
    assert written == [2 * S, S]


def test_expressions_that_cannot_be_written_down_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(e: Any) -> str:
        raise ExpressionTooLargeError("too large")

    monkeypatch.setattr(module, "to_python", too_large)
    numbers = NumbersAtSizes((S,), (2 * S,))
    for n in range(_EVALUATED + 3):
        assert numbers((n,)) == (2 * n,)
