"""Random programs differentiated twice, with hooks on their outputs or without: what is seen is what eager shows.

Some steps write to tensors with gradients off, or through a detached alias: the tensors keep their histories.
TREADLE_EXAMPLES=13 runs 3,900 programs in place of 300.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import test_random_gradients
import torch
from gradient_oracle import run_operators
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_random_gradients import ALL, INPUTS, assert_same, build, make_inputs

from treadle_autograd import aot
from treadle_autograd.contract import FreshOutput
from treadle_autograd.gradient_programs import GradientPrograms


def _clamp_without_gradients(a: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        a.clamp_(min=0.05)
    return a


def _write_to_detached(a: torch.Tensor) -> torch.Tensor:
    a.detach().mul_(0.9)
    return a


def _write_to_part(a: torch.Tensor) -> torch.Tensor:
    if a.dim():
        with torch.no_grad():
            a[..., :1].add_(0.3)
    return a


QUIET = {
    "clamp_quietly_": lambda a, b: _clamp_without_gradients(a),
    "write_to_detached": lambda a, b: _write_to_detached(a),
    "write_to_part": lambda a, b: _write_to_part(a),
    "straight_through": lambda a, b: a + (a.round() - a).detach(),
    "square": lambda a, b: a * a * 0.5,
}
PROGRAM = st.lists(
    st.tuples(st.sampled_from([*sorted(ALL), *sorted(QUIET) * 4]), st.integers(0, 20), st.integers(0, 20)),
    min_size=1,
    max_size=8,
)


def observe(run: Any, layouts: Any, hooks: frozenset[int], dtype: torch.dtype = torch.float32) -> list[Any]:
    """Outputs, their gradients as hooks see them, gradients of the leaves, and gradients of the sum of their squares."""
    torch.manual_seed(0)
    leaves, inputs = make_inputs(layouts, dtype)
    try:
        outputs = list(run(*inputs))
    except RuntimeError as error:
        return [type(error)]
    seen: list[Any] = [[o.detach().clone() for o in outputs], [o.requires_grad for o in outputs]]
    hooked: list[Any] = []
    # A view of something changed has a new history when it is asked for; torch 2.13 crashes if `register_hook` is the first to ask.
    _ = [o.grad_fn for o in outputs]
    handles = [
        output.register_hook(lambda g, place=place: hooked.append((place, g.detach().clone())))
        for place, output in enumerate(outputs)
        if place in hooks and output.requires_grad
    ]
    results = [o * 1 for o in outputs if o.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not results or not wanted:
        return seen
    total = sum((r * (k + 1) * 0.3).pow(2).sum() for k, r in enumerate(results))
    try:
        first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
        for handle in handles:  # what a second pass sends to an output is not all seen (README, known limits)
            handle.remove()
        defined = [g for g in first if g is not None and g.requires_grad]
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in defined), wanted, allow_unused=True) if defined else ()
    except RuntimeError as error:
        return [*seen, "modified by an inplace operation" in str(error)]
    seen += [[None if g is None else g.detach() for g in (*first, *second)]]
    seen += [[g for p, g in hooked if p == place] for place in range(len(outputs))]
    return seen


def _tensors(seen: Any) -> Iterator[torch.Tensor]:
    if isinstance(seen, torch.Tensor):
        yield seen
    elif isinstance(seen, (list, tuple)):
        for item in seen:
            yield from _tensors(item)


def assert_as_exact_as(mine: list[torch.Tensor], theirs: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    """Assert that ours are off from the results in float64 by no more than twice what eager's are."""
    for a, b, reference in zip(mine, theirs, exact, strict=True):
        allowed = 1e-5 + 2 * float((b - reference).abs().nan_to_num().max()) if reference.numel() else 0.0
        torch.testing.assert_close(a.double(), reference.double(), rtol=1e-5, atol=allowed, equal_nan=True)


@pytest.mark.parametrize("compiled_again", [True, False], ids=["compiled", "eager"])
@settings(
    max_examples=150 * int(os.environ.get("TREADLE_EXAMPLES", "1")),
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
@given(PROGRAM, st.lists(st.integers(0, 20), min_size=1, max_size=4), INPUTS, st.booleans())
@example(
    # Eager's second gradient of the norm is off by 1.5e-4 here, ours by 1.3e-4.
    program=[*[("add", 0, 0)] * 2, ("norm", 1, 0), ("add", 0, 0), ("square", 1, 0), *[("add", 0, 0)] * 2],
    outputs=[6, 1, 13],
    layouts=[(0, False, False), (0, True, False)],
    has_hooks=False,
)
def test_random_second_gradients(
    monkeypatch: pytest.MonkeyPatch, compiled_again: bool, program: Any, outputs: Any, layouts: Any, has_hooks: bool
) -> None:
    monkeypatch.setattr(test_random_gradients, "ALL", {**ALL, **QUIET})
    if not compiled_again:
        monkeypatch.setattr(GradientPrograms, "find", lambda *_: None)
    gm = build(program, outputs, layouts)
    if gm is None:
        return
    compiled = aot(gm, make_inputs(layouts)[1], inference=False, forward=run_operators)
    # A hook on a view sees what reaches the view from outside only (README, known limits).
    fresh = (
        frozenset(k for k, o in enumerate(compiled.contract.outputs) if isinstance(o, FreshOutput))
        if compiled.contract
        else ()
    )
    hooks = frozenset(fresh if has_hooks else ())
    mine, theirs = observe(compiled, layouts, hooks), observe(gm, layouts, hooks)
    if theirs[-1] is True and mine[-1] is not True:
        return  # eager had saved what was changed, and we had not
    try:
        assert_same(mine, theirs, atol=1e-5)  # where two norms meet, terms of order 1 leave gradients of 1e-3
    except AssertionError:
        exact = list(_tensors(observe(gm, layouts, hooks, torch.float64)))
        assert_as_exact_as(list(_tensors(mine)), list(_tensors(theirs)), exact)
