"""torch.cond, while_loop, scan, map and associative_scan in compiled functions. The oracle is the same program in plain Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._higher_order_ops as hop
import torch.utils._pytree as pytree

import treadle

W = torch.linspace(-1, 1, 16).reshape(4, 4)


def choose(pred, true, false, operands=()):
    return true(*operands) if pred else false(*operands)


def loop(test, body, carried):
    while test(*carried):
        carried = body(*carried)
    return carried


def scanned(combine, init, xs, dim=0, reverse=False):
    carry, outputs = init, []
    rows = list(xs.unbind(dim))
    for x in reversed(rows) if reverse else rows:
        carry, output = combine(carry, x)
        outputs.append(output)
    outputs.reverse() if reverse else None
    stacked = torch.stack(outputs)
    return carry, stacked.movedim(0, dim) if dim < stacked.dim() else stacked


def mapped(f, xs, *args):
    return torch.stack([f(x, *args) for x in xs])


pytestmark = pytest.mark.filterwarnings("error:.*treadle")  # a graph that runs in eager

OPERATORS = (torch.cond, hop.while_loop, hop.scan, hop.map)
PLAIN = (choose, loop, scanned, mapped)
Program = Callable[..., Any]

PROGRAMS: dict[str, Program] = {
    "cond": lambda ops, x, w: ops[0](x.sum() > 0, lambda a: (a @ w).sin(), lambda a: a @ W - 1, (x,)),
    "cond of a size": lambda ops, x, w: ops[0](x.shape[0] > 4, lambda a: a + w.sum(), lambda a: a - 1, (x,)),
    "cond of a structure": lambda ops, x, w: ops[0](
        x.sum() > 0, lambda a: {"a": a + w.sum(), "b": [a.sum()]}, lambda a: {"a": a - w.sum(), "b": [a.mean()]}, (x,)
    ),
    "cond in cond": lambda ops, x, w: ops[0](
        x.sum() > 0,
        lambda a: ops[0](a.mean() > 0.5, lambda b: b * w.sum(), lambda b: b * 3 * w[0, 0], (a,)),
        lambda a: a - w.sum(),
        (x,),
    ),
    "cond that returns its operand": lambda ops, x, w: ops[0](x.sum() > 0, lambda a: a, lambda a: -a, (x * w.sum(),)),
    "while_loop": lambda ops, x, w: ops[1](
        lambda i, a: i < 5, lambda i, a: (i + 1, a @ w), (torch.tensor(0), x * w.sum())
    ),
    "while_loop to a value": lambda ops, x, w: ops[1](
        lambda i, a: a.detach().abs().sum() < 100, lambda i, a: (i + 1, a * 2 + w.sum()), (torch.tensor(0), x * w.sum())
    ),
    "scan": lambda ops, x, w: ops[2](lambda c, e: (c * 0.5 + e @ w, c + e), torch.zeros(4), x),
    "scan in reverse": lambda ops, x, w: ops[2](
        lambda c, e: (c * 0.5 + e, (c + e).sum()), torch.zeros(x.shape[0]), x * w.sum(), dim=1, reverse=True
    ),
    "map": lambda ops, x, w: ops[3](lambda e, v: e @ v, x, w),
}


def leaves(result):
    return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_one_graph_that_gives_what_python_gives(name, requires_grad):
    program = PROGRAMS[name]
    compiled = treadle.compile(lambda x, w: program(OPERATORS, x, w), fullgraph=True)
    for rows in (3, 5, 6):
        for sign in (1, -1):
            x = (torch.rand(rows, 4) * sign).requires_grad_(requires_grad)
            w = (torch.rand(4, 4) * 0.5).requires_grad_(requires_grad)
            found, expected = leaves(compiled(x, w)), leaves(program(PLAIN, x, w))
            torch.testing.assert_close(
                [t.detach() for t in found], [t.detach() for t in expected], rtol=1e-4, atol=1e-4
            )
            assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
            if requires_grad:
                wanted = [
                    torch.autograd.grad(
                        sum(t.pow(2).sum() for t in tensors if t.requires_grad),
                        [x, w],
                        allow_unused=True,
                        materialize_grads=True,
                    )
                    for tensors in (found, expected)
                ]
                torch.testing.assert_close(*wanted, rtol=1e-4, atol=1e-4)


def test_associative_scan():
    def program(x):
        return hop.associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")

    compiled = treadle.compile(program, fullgraph=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), x.cumprod(0))


def test_random_numbers_in_a_branch():
    def program(x):
        return torch.cond(x.sum() > 0, lambda a: a + torch.rand_like(a), lambda a: a * 2, (x,))

    compiled = treadle.compile(program, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.manual_seed(0)
        found, following = compiled(x), torch.rand(1)
        torch.manual_seed(0)
        assert torch.equal(found, x + torch.rand_like(x) if x.sum() > 0 else x * 2)
        assert torch.equal(following, torch.rand(1))


RANDOM = {
    "that is used once": lambda ops, x, w: ops[0](x.sum() > 0, lambda a: a + torch.rand_like(a), lambda a: a, (x,)),
    "that backward needs": lambda ops, x, w: (
        ops[0](x.sum() > 0, lambda a: a + torch.rand_like(a), lambda a: a, (x,)) * w
    ).sin(),
    "that is not used": lambda ops, x, w: (
        ops[0](x.sum() > 0, lambda a: a + torch.rand_like(a), lambda a: a, (x,)) is None or torch.rand_like(x) * w
    ),
    "of a branch in a branch": lambda ops, x, w: ops[0](
        x.sum() > 0,
        lambda a: ops[0](a.mean() > 0.5, lambda b: torch.rand_like(b), lambda b: b * 2, (a,)) * w,
        lambda a: a * w,
        (x,),
    ),
}


@pytest.mark.parametrize("memory_budget", [1.0, 0.0])
@pytest.mark.parametrize("name", RANDOM)
def test_gradients_beside_random_numbers_of_a_branch(name, memory_budget):
    program = RANDOM[name]
    compiled = treadle.compile(lambda x, w: program(OPERATORS, x, w), options={"memory_budget": memory_budget})
    x, found = torch.ones(3000), []
    for run in (compiled, lambda x, w: program(PLAIN, x, w)):
        w = torch.linspace(0, 1, 3000).requires_grad_()
        torch.manual_seed(0)
        result = run(x, w)
        if result.requires_grad:
            result.sum().backward()
        found.append((result.detach(), w.grad, torch.rand(1)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_gradients(name):
    program, found = PROGRAMS[name], []
    for run in (treadle.compile(lambda x, w: program(OPERATORS, x, w)), lambda x, w: program(PLAIN, x, w)):
        x, w = (torch.linspace(0.1, 0.9, n).view(-1, 4).requires_grad_() for n in (12, 16))
        options = {"allow_unused": True, "materialize_grads": True}
        loss = sum(t.pow(2).sum() for t in leaves(run(x, w)) if t.requires_grad)
        first = torch.autograd.grad(loss, [x, w], create_graph=True, **options)
        norm = sum(t.pow(2).sum() for t in first)
        found.append(torch.autograd.grad(norm, [x, w], **options))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cond(x.sum() > 0, lambda a: a.sum(), lambda a: a, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda a: a + a.sum().item(), lambda a: a, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda a: a.add_(1), lambda a: a - 1, (x.clone(),)),
    ],
)
def test_what_is_no_node_breaks_the_graph_and_runs_in_python(program, monkeypatch):
    """In PyTorch's own operator these programs raise, or start torch.compile."""
    compiled = treadle.compile(program)
    for x in (torch.ones(3), -torch.ones(3)):
        expected = program.__code__.replace()
        scope = {**program.__globals__, "torch": _Plain()}
        plain = type(program)(expected, scope)
        torch.testing.assert_close(compiled(x), plain(x))


class _Plain:
    cond = staticmethod(choose)


def test_torch_compile_is_not_started():
    text = """
import sys, torch, treadle
f = treadle.compile(lambda x: torch.cond(x.sum() > 0, lambda a: a + a.sum().item(), lambda a: a - 1, (x,)))
g = treadle.compile(lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)), fullgraph=True)
for x in (torch.ones(3), -torch.ones(3)):
    f(x), g(x)
assert "torch._dynamo.convert_frame" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", text], check=True)
