"""Gradients by an input that is a view and that the graph has written to: what is computed from it leads to the node that it has now."""

from __future__ import annotations

import pytest
import torch

import treadle


@pytest.fixture(autouse=True)
def fresh():
    treadle.reset()
    yield
    treadle.reset()


def written_once(part):
    part.mul_(3)
    loss = part.sin().sum()
    print(end="")
    return (loss, *torch.autograd.grad(loss, part, retain_graph=True))


def written_often(part):
    part.mul_(3).add_(1).sin_()
    loss = (part * part).sum()
    print(end="")
    return (loss, *torch.autograd.grad(loss, part, retain_graph=True))


def written_through_a_view(part):
    part[..., 1:].mul_(3)
    loss = part.exp().sum()
    print(end="")
    return (loss, *torch.autograd.grad(loss, part, retain_graph=True))


def differentiated_twice(part):
    part.mul_(3)
    loss = part.sin().sum()
    print(end="")
    (gradient,) = torch.autograd.grad(loss, part, create_graph=True)
    return gradient, *torch.autograd.grad(gradient.square().sum(), part, retain_graph=True)


PROGRAMS = [written_once, written_often, written_through_a_view, differentiated_twice]


def outcome(run, make_view):
    torch.manual_seed(0)
    leaf = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    part = make_view(leaf * 2)
    results = run(part)
    version = part._version
    (results[0].sum() + part.cos().sum()).backward()
    return [r.detach() for r in results], leaf.grad, part.detach(), version


@pytest.mark.parametrize("make_view", [lambda h: h[1:], lambda h: h.t(), lambda h: h[:, 1:3], lambda h: h.view(-1)])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_by_a_view_that_was_written_to(program, make_view):
    torch.testing.assert_close(outcome(treadle.compile(program), make_view), outcome(program, make_view))


def test_the_loss_leads_to_the_node_of_the_view_behind_the_call():
    @treadle.compile
    def program(part):
        part.mul_(3).add_(1)
        return part.sin().sum()

    part = (torch.randn(4, requires_grad=True) * 2)[1:]
    loss = program(part)
    assert len(torch.autograd.grad(loss, part)) == 1
    assert part._version == 2


def test_a_written_view_is_computed_from_another_of_the_same_tensor():
    def program(a, b):
        a.copy_(a * 2)
        b.add_(a.sum())
        print(end="")
        return a, b

    def gradient(run):
        leaf = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
        whole = leaf * 1.5
        a, b = run(whole[:2], whole[2:])
        (a.sin() + b.cos() + whole[1:3]).sum().backward()
        return leaf.grad

    torch.testing.assert_close(gradient(treadle.compile(program)), gradient(program))


def test_what_comes_from_an_older_view_does_not_come_from_the_written_one():
    def program(part):
        turned = part.t()
        part.mul_(3)
        return (turned.sin() * part.mean()).sum(), turned.cos().sum()

    def gradients(run):
        leaf = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
        part = (leaf * 1.5)[1:]
        both, turned = run(part)
        by_part = torch.autograd.grad(turned, part, retain_graph=True, allow_unused=True)
        (both + turned).backward()
        return by_part, leaf.grad

    found, expected = gradients(treadle.compile(program)), gradients(program)
    assert found[0] == expected[0] == (None,)
    torch.testing.assert_close(found[1], expected[1])
