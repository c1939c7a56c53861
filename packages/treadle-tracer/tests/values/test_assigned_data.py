"""`tensor.data = other` of tensors that the function has made."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compare, compiled
from trace_runs import t


def plain(x):
    y = x.clone()
    y.data = x + 5
    return y * 2, y


def written_later(x):
    y, z = x.clone(), x + 5
    y.data = z
    y.add_(1)
    z.mul_(2)
    return y, z, y.shape


def of_other_metadata(x):
    y = x.clone()
    y.data = torch.arange(4)
    return y + 1, y.dtype, y.shape


def of_itself(x):
    y = x + 1
    y.data = y
    y.data = y.data * 2
    return y, y is y.data


def the_same_object(x):
    y = x + 1
    kept = [y]
    y.data = x * 3
    return kept[0] is y, kept[0], kept


def of_the_argument(x):
    y = x + 1
    y.data = x
    y.add_(1)
    return y


def of_what_requires_a_gradient(x):
    w = torch.ones(3, requires_grad=True)
    y = x + 1
    y.data = w * 2
    return y, y.requires_grad, y.grad_fn is None, y.is_leaf


@pytest.mark.parametrize(
    "program",
    (
        plain,
        written_later,
        of_other_metadata,
        of_itself,
        the_same_object,
        of_the_argument,
        of_what_requires_a_gradient,
    ),
    ids=lambda f: f.__name__,
)
def test_a_tensor_of_the_graph_gets_other_elements(program):
    recorder = compare(program, t(2, 3))
    assert len(recorder.graphs) == 1 and recorder.codes() == [], recorder.breaks


def test_what_autograd_has_saved_breaks():
    def program(x, w):
        y = x.clone()
        z = (y * w).sum()
        y.data = x + 5
        z.backward()
        return w.grad.clone(), y

    def run(function):
        w = torch.ones(3, requires_grad=True)
        return [each.tolist() for each in function(torch.arange(3.0), w)]

    fast, recorder = compiled(program)
    assert run(fast) == run(program) and "tensor-attribute" in recorder.codes()


def a_view(x):
    y = x.clone()[0]
    y.data = x[1]
    return y * 2


def with_gradients(x):
    w = torch.ones(3, requires_grad=True)
    y = w * 2
    y.data = x[0]
    return y.sum()


def with_a_view(x):
    y, z = x.clone(), torch.zeros(4, 6)
    first = y[0]
    y.data = z[1:3]
    y[0] = 7
    first.fill_(3)
    return y, z, first, y.shape, y.stride(), y.storage_offset()


def already_written(x):
    y = x.clone()
    y.add_(1)
    y.data = x + 1
    return y, y._version


@pytest.mark.parametrize("program", (a_view, with_gradients, with_a_view, already_written), ids=lambda f: f.__name__)
def test_what_keeps_a_history_breaks(program):
    assert "tensor-attribute" in compare(program, t(2, 3)).codes()


def test_a_path_that_is_not_taken_assigns_nothing():
    def program(x):
        y = x.clone()
        if x.shape[0] > 3:
            y.data = x + 1
        return y * 2

    fast, _ = compiled(program, dynamic=True)
    for n in (2, 3, 4, 5):
        assert torch.equal(fast(torch.ones(n, 2)), program(torch.ones(n, 2)))


def _moved(w, x):
    """As losses with weights of their own do, before each use."""
    w.data = w.data.to(x.device, x.dtype)
    w.data = w.detach()
    return (x @ w).tanh().sum()


def _in_parts(w, x):
    w.data = w.data.view(-1).view(w.shape)
    y = x * 1
    y.data = y.data[:]
    return ((y @ w) ** 2).sum(), y


@pytest.mark.parametrize("program", [_moved, _in_parts])
def test_an_assignment_of_what_is_there_already_changes_nothing(program):
    fast, said = compiled(program)
    mine, eagers = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3, 2))
    for step in range(3):
        x = torch.randn(4, 3)
        place, version = mine.data_ptr(), mine._version
        results = [fast(mine, x), program(eagers, x)]
        found, expected = [r if isinstance(r, tuple) else (r,) for r in results]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
        found[0].backward()
        expected[0].backward()
        torch.testing.assert_close(mine.grad, eagers.grad)
        assert (mine.data_ptr(), mine._version) == (place, version)
        with torch.no_grad():
            for w in (mine, eagers):
                w.sub_(w.grad, alpha=0.1 * step)
    assert not said.breaks


@pytest.mark.parametrize(
    "part", [lambda w: w.t(), lambda w: w[:1], lambda w: w[1:3], lambda w: w.view(2, 2, 2)], ids=str
)
def test_an_assignment_of_another_view_of_its_own_memory(part):
    def program(w, x):
        w.data = part(w.data)
        return (w.detach() * x).sum(), w.shape, w.stride()

    fast, _ = compiled(program)
    mine, eagers = torch.arange(8.0).view(4, 2), torch.arange(8.0).view(4, 2)
    found, expected = fast(mine, torch.ones(())), program(eagers, torch.ones(()))
    assert found == expected
    assert torch.equal(mine, eagers) and mine.stride() == eagers.stride()
