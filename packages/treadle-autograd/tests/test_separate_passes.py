"""Backward passes through one output after another: gradients, errors and what stays alive are eager's."""

from __future__ import annotations

import gc
import random
from itertools import product
from typing import Any

import pytest
import torch
from joint_graphs import with_examples
from kept.keeping import KeepingGraphs, programs_in_memory
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef

from treadle_autograd import aot
from treadle_autograd.separate_passes import freed_by

_RETAIN = {"retain_graph": True}


def apart(a, b, w):
    return (a.exp() * w).sin(), (b.tanh() * w).cos()


def at_the_trunk(a, b, w):
    h = (a * w).exp()
    return h.sin(), h.cos()


def nothing_saved_in_common(a, b, w):
    h = a * 2 + b
    return h.sin(), h.cos() * w, h - 1


def some_together(a, b, w):
    h = (a * w).exp()
    return h.sin(), (b * w).sin(), h.tanh()


def one_from_the_other(a, b, w):
    h = a + b
    return h, h.exp(), w.exp() + h


def a_penalty(a, b, w):
    return (a @ w).relu().square().sum(), w.square().sum()


PROGRAMS = (apart, at_the_trunk, nothing_saved_in_common, some_together, one_from_the_other, a_penalty)


def inputs() -> list[torch.Tensor]:
    return [torch.linspace(-1, k, 9).view(3, 3).clone().requires_grad_() for k in (1, 2, 3)]


def compiled(function: Any) -> Any:
    return aot(fx.symbolic_trace(function), inputs(), inference=False, forward=KeepingGraphs())


def outcomes(function: Any, passes: Any) -> list[Any]:
    """What each pass does: the gradients behind it, or its error. passes: the outputs it begins at, and whether it keeps the graph."""
    leaves = inputs()
    results = function(*leaves)
    found: list[Any] = []
    for begins, retain in passes:
        chosen = [results[k % len(results)] for k in begins]
        try:
            torch.autograd.backward(chosen, [torch.ones_like(r) for r in chosen], retain_graph=retain)
        except RuntimeError as error:
            return [*found, str(error)]
        found.append([None if leaf.grad is None else leaf.grad.clone() for leaf in leaves])
    return found


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert [type(f) for f in found] == [type(e) for e in expected]
    for f, e in zip(found, expected, strict=True):
        if isinstance(e, str):
            assert f == e
        else:
            for a, b in zip(f, e, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("function", PROGRAMS)
def test_two_passes(function):
    program = compiled(function)
    for first, second, retain in product(range(3), range(3), (False, True)):
        passes = [([first], retain), ([second], False)]
        assert_same(outcomes(program, passes), outcomes(function, passes))


@pytest.mark.parametrize("function", PROGRAMS)
def test_any_passes(function):
    program, draw = compiled(function), random.Random(0)
    for _ in range(40):
        passes = [(draw.sample(range(2), draw.randint(1, 2)), draw.random() < 0.4) for _ in range(draw.randint(2, 4))]
        assert_same(outcomes(program, passes), outcomes(function, passes))


@pytest.mark.parametrize("function", (apart, a_penalty))
def test_programs_that_are_found_do_so_too(function):
    keeping, passes = KeepingGraphs(), [([0], False), ([1], False)]
    with programs_in_memory():
        for _ in range(2):
            gm = with_examples(fx.symbolic_trace(function), inputs())
            program = aot(gm, inputs(), inference=False, forward=keeping)
            assert_same(outcomes(program, passes), outcomes(function, passes))
    assert keeping.n_found


@pytest.mark.parametrize("function", (apart, a_penalty))
def test_parameters_with_hooks(function):
    """They ask for stages of the backward pass, each of which would drop what it has saved."""
    found: list[Any] = []
    for run in (function, compiled(function)):
        leaves, seen = inputs(), []
        for leaf in leaves:
            leaf.register_post_accumulate_grad_hook(lambda t, seen=seen: seen.append(t.grad.sum()))
        for result in run(*leaves):
            result.sum().backward()
            seen.append(torch.zeros(()))
        found.append(seen)
    torch.testing.assert_close(torch.stack(found[1]).sort().values, torch.stack(found[0]).sort().values)


def test_what_the_other_output_reads_must_not_have_changed():
    for function in (a_penalty, compiled(a_penalty)):
        a, b, w = inputs()
        loss, penalty = function(a, b, w)
        loss.backward()
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            penalty.backward()


def test_gradients_of_gradients_behind_another_pass():
    found = []
    for function in (apart, compiled(apart)):
        leaves = inputs()
        x, y = function(*leaves)
        x.sum().backward()
        (first,) = torch.autograd.grad(y.sum(), leaves[1], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaves[1:]))
    torch.testing.assert_close(found[1], found[0])


def test_hooks_on_saved_tensors():
    passes = [([0], False), ([1], False)]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        assert_same(outcomes(compiled(apart), passes), outcomes(apart, passes))


def test_only_what_the_other_output_reads_is_kept():
    """A penalty that is not differentiated, or no longer there, keeps no activations alive."""
    for keep in (True, False):
        saved: list[Any] = []
        program = compiled(a_penalty)
        a, b, w = inputs()

        def note(tensor: torch.Tensor, saved: list[Any] = saved) -> torch.Tensor:
            saved.append(StorageWeakRef((kept := tensor.clone()).untyped_storage()))
            return kept

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            loss, penalty = program(a, b, w)
        if not keep:
            del penalty
        loss.backward()
        gc.collect()
        assert len(saved) > 1
        assert sum(not storage.expired() for storage in saved) == keep


def test_outputs_that_share_what_autograd_saves():
    a = torch.ones(3, requires_grad=True)
    h, other = a.exp(), a + 1
    assert freed_by([h.sin().grad_fn, h.cos().grad_fn]) == ()
    assert freed_by([h.sin().grad_fn, a.cos().grad_fn, (h + 1).grad_fn]) == ({0, 2}, {1}, {0, 2})
    assert freed_by([other.grad_fn, (other - 2).grad_fn]) == (set(), set())
    assert freed_by([other.grad_fn, other.sin().grad_fn]) == (set(), {1})


def gradients_around_writes(function: Any, written: int, passes: list[int], keep: bool) -> list[Any]:
    """What passes from single outputs give, one after another, behind a write to an output or an input."""
    a, b, w = inputs()
    outputs = list(function(a, b, w))
    given: list[Any] = []
    with torch.no_grad():
        outputs[written].mul_(2)
    for number in passes:
        try:
            found = torch.autograd.grad(outputs[number].sum(), [a, b, w], retain_graph=keep, allow_unused=True)
        except RuntimeError as error:
            found = [
                "modified" if "modified by" in str(error) else "gone" if "second time" in str(error) else str(error)
            ]
        given.append(found)
    return given


def saved_results(a, b, w):
    return a.exp() * 1, (b.exp() * w).tanh(), w.sigmoid(), a.tanh()


@pytest.mark.parametrize("keep", (True, False))
@pytest.mark.parametrize("written", range(3))
@pytest.mark.parametrize("function", (saved_results, apart, one_from_the_other, some_together))
def test_passes_and_writes(function, written, keep):
    """Where eager computes gradients, so does the compiled graph; and the same ones where both do."""
    n_outputs = len(function(*inputs()))
    if written >= n_outputs:
        return
    for passes in product(range(n_outputs), repeat=2):
        found = gradients_around_writes(compiled(function), written, list(passes), keep)
        expected = gradients_around_writes(function, written, list(passes), keep)
        for one, other in zip(found, expected, strict=True):
            if other in (
                ["modified"],
                ["gone"],
            ):  # a compiled graph may have gradients all the same, and drops what it has read
                assert isinstance(one, tuple) or one in (["modified"], ["gone"])
                break
            assert [g is None for g in one] == [g is None for g in other]
            for g, h in zip(one, other, strict=True):
                if h is not None:
                    torch.testing.assert_close(g, h)
