"""Which tensors fill a block of memory, what cannot be returned, and which base outputs with one storage share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from aten_runner import compile_traced
from joint_graphs import with_examples
from torch import fx

from treadle_autograd import aot
from treadle_autograd.contract import Constant, FreshOutput, Geometry, SameAsOutput, ViewOfFresh, ViewOfInput
from treadle_autograd.describe import geometry_of, is_dense, is_unbacked, why_not_describable
from treadle_autograd.errors import UnsupportedGraph
from treadle_autograd.readings import Elements, Reading
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor


def strided(*dims):
    return torch.empty_strided([n for n, _ in dims], [s for _, s in dims])


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (strided((2, 3), (3, 1)), True),
        (strided((3, 1), (2, 3)), True),
        (strided((2, 4), (3, 1)), False),
        (strided((2, 0), (3, 1)), False),
        (strided((2, 3), (1, 7), (3, 1)), True),
        (strided((0, 5), (3, 9)), True),
        (strided(), True),
    ],
)
def test_dense_tensors(tensor, dense):
    assert is_dense(tensor) is dense


def test_dense_tensors_with_symbolic_sizes():
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.empty(6, 4), [env.create_symbol(6, "n"), env.create_symbol(4, "m")])
    with mode:
        assert is_dense(x) and is_dense(x.t())
        assert env.guards == []
        assert not is_dense(x[:, ::2])
    assert not is_unbacked(x)


def test_geometry_counts_from_the_viewed_tensor():
    base = torch.arange(20.0)[4:]
    assert geometry_of(base[2:8].view(2, 3), relative_to=base) == Geometry((2, 3), (3, 1), 2)
    numbers = torch.view_as_complex(torch.zeros(6, 2))[1:]
    parts = Reading(Elements.PARTS)
    assert geometry_of(numbers.imag[2:], numbers, parts) == Geometry((3,), (2,), 5, parts)


def test_complex_numbers_begin_where_those_of_their_base_do():
    base = torch.arange(8.0)
    with pytest.raises(UnsupportedGraph, match="begin between two"):
        geometry_of(torch.view_as_complex(base[2:8].view(3, 2)), base[1:], Reading(Elements.PAIRS))


def test_tensors_that_cannot_be_returned():
    functional = torch._to_functional_tensor
    assert why_not_describable(functional(torch.ones(2))) is None
    assert why_not_describable(torch.ones(2)) == "an output is a tensor that no functional operator made"
    assert why_not_describable(functional(torch.ones(2).to_mkldnn())) == "an output has the layout torch._mkldnn"


def outputs_of(function, *inputs):
    return compile_traced(function, inputs).contract.outputs


def test_outputs_of_one_storage_share_their_root():
    def f(x):
        y = x * 2
        return y[1:], y.t(), y[0]

    outputs = outputs_of(f, torch.ones(3, 4))
    assert outputs == (
        ViewOfFresh(0, Geometry((2, 4), (4, 1), 4)),
        ViewOfFresh(0, Geometry((4, 3), (1, 4), 0)),
        ViewOfFresh(0, Geometry((4,), (1,), 0)),
    )


def test_a_single_dense_output_is_its_own_base():
    assert outputs_of(lambda x: (x * 2).t(), torch.ones(3, 4)) == (FreshOutput(0),)


def test_views_of_inputs_repeated_outputs_and_constants():
    def f(x):
        y = x + 1
        return x[1:], y, y, None, 3

    outputs = outputs_of(f, torch.ones(3))
    assert outputs == (
        ViewOfInput(0, Geometry((2,), (1,), 1)),
        FreshOutput(0),
        SameAsOutput(1),
        Constant(None),
        Constant(3),
    )


def test_views_with_another_dtype_run_eagerly():
    compiled = compile_traced(lambda x: x.view(torch.int32), [torch.ones(2)])
    assert compiled.why_eager == "an output is a view of an input with another dtype"


def _aliases(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    z = y.detach()
    return y[1:].detach(), z[2:], y, z, y[:2], w.detach(), w.detach()[1:], w[1:]


@pytest.mark.parametrize("inference", [False, True])
def test_what_aliases_are_to_autograd(inference: bool) -> None:
    """A loss and `loss.detach()`, say: views, views of what is detached, and what is no view, with and without a history."""

    def facts(results: Any, w: torch.Tensor) -> Any:
        bases = [None if t._base is None else (t._base is w, t._base is results[2] and not inference) for t in results]
        own = [(t.requires_grad, t.is_leaf, t._is_view(), t._version, t.shape, t.stride()) for t in results]
        return bases, own

    found = []
    for compiles in (False, True):
        w = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=not inference)
        x = torch.ones(4)
        run: Any = _aliases
        if compiles:
            run = aot(fx.symbolic_trace(_aliases), [x, w], inference=inference, forward=lambda gm, _: gm)
            assert run.why_eager is None
        results = run(x, w)
        before = facts(results, w)
        with torch.no_grad():
            results[3].add_(1)  # all views of `y` show it
        gradients = () if inference else torch.autograd.grad(results[4].sum() + results[7].pow(2).sum(), w)
        found.append((before, facts(results, w), [t.detach() for t in results], gradients))
    for mine, theirs in zip(found[1][:2], found[0][:2], strict=True):
        assert mine == theirs
    torch.testing.assert_close(found[1][2:], found[0][2:])


def _written_and_returned(x):
    y = x * 3
    alias = y.detach()
    alias.copy_(x * 7)
    return y, alias


def _alias_of_a_changed_input(x):
    x.mul_(3)
    alias = x.detach()
    alias.copy_(x * 1)
    alias.mul_(3)
    return (alias,)


@pytest.mark.parametrize("function", [_written_and_returned, _alias_of_a_changed_input])
def test_detached_aliases_that_get_a_history_of_their_own_are_eagers(function):
    def gradients(run):
        leaf = torch.arange(3.0, requires_grad=True)
        outputs = run(leaf * 1)
        (gradient,) = torch.autograd.grad([k * output.sum() for k, output in enumerate(outputs, 2)], leaf)
        return [output._is_view() for output in outputs], gradient.tolist()

    x = torch.arange(3.0, requires_grad=True) * 1
    gm = with_examples(fx.symbolic_trace(function), [x])
    compiled = aot(gm, [x], inference=False, forward=lambda gm, inputs: gm.forward)
    assert compiled.why_eager == "an output shares memory with a tensor, and has a history of its own"
    assert gradients(compiled) == gradients(function)


def _steps(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    with torch.no_grad():
        y[0].add_(1)
    first, second = (x - w).split(2, -1)
    return y.sum(), y[:, -1].detach(), y[:, :2].detach(), first.detach(), second.data, (x.cumsum(1) + w)[:, 1].detach()


@pytest.mark.parametrize("inference", [False, True])
def test_parts_of_what_is_not_returned(inference: bool) -> None:
    """The last state of a sequence, detached from its history, is a part of memory that no output covers."""
    found = []
    for compiles in (False, True):
        x, w = torch.arange(12.0).view(3, 4), torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=not inference)
        run: Any = _steps
        if compiles:
            gm = with_examples(fx.symbolic_trace(_steps), [x, w])
            run = aot(gm, [x, w], inference=inference, forward=lambda gm, _: gm)
            assert run.why_eager is None
        results = run(x, w)
        facts = [(t.requires_grad, t._is_view(), t.shape, t.stride(), t.storage_offset()) for t in results]
        memory = [t.untyped_storage().nbytes() for t in results]
        with torch.no_grad():
            results[1].add_(1)  # the outputs after it in the same memory show it, and count it
        versions = [t._version for t in results[1:3]]
        gradients = () if inference else torch.autograd.grad(results[0], w)
        found.append((facts, memory, versions, [t.detach().clone() for t in results], gradients))
    assert found[0][:3] == found[1][:3]
    for mine, theirs in zip(found[1][3:], found[0][3:], strict=True):
        torch.testing.assert_close(mine, theirs)
