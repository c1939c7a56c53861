"""Random programs, compiled twice: the second time they are found. Values, gradients, aliases, errors and random numbers are eager's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joint_graphs import with_examples
from kept.keeping import KeepingGraphs, programs_in_memory
from test_random_gradients import ALL, INPUTS, PROGRAM, assert_same, build, make_inputs, observe

from treadle_autograd import aot
from treadle_autograd.kept import key

_n_found = 0


@pytest.fixture(autouse=True, scope="module")
def _steps_have_names():
    """The steps of these programs are functions of the tests, which have no key outside."""
    names = {function: name for name, function in ALL.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key, "_described_target", names.__getitem__)
        yield


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROGRAM, st.lists(st.integers(0, 20), min_size=1, max_size=4), INPUTS, st.integers(0, 12))
def test_random_programs_that_are_found(program: Any, outputs: Any, layouts: Any, changed: int) -> None:
    global _n_found
    layouts = [
        (layout, k == 0 or needs, True) for k, (layout, needs, _) in enumerate(layouts)
    ]  # no history: else no key
    gm = build(program, outputs, layouts)
    if gm is None:
        return
    compiler = KeepingGraphs()
    with programs_in_memory():
        seen = []
        for _ in range(2):
            inputs = make_inputs(layouts)[1]
            with_examples(gm, inputs)
            compiled = aot(gm, inputs, inference=False, forward=compiler)
            seen.append(observe(compiled, layouts, changed))
    first, second = seen
    _n_found += compiler.n_found > 0
    assert_same(second, first, atol=0)
    theirs = observe(gm, layouts, changed)
    if not (theirs[-1] is True and second[-1] is not True):
        assert_same(second, theirs)


def test_programs_were_found():
    assert _n_found > 20
