"""Tensors made in inference mode that are used outside of it, against eager: PyTorch refuses to write to them and to save them for a
backward pass. What the program has done before that stays done."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import treadle

SEEN: list[Any] = [None]
WEIGHT = torch.ones(2, 3, requires_grad=True)


def item_written(x):
    SEEN[0] = x.sum()
    x[0] = 2
    return x


def written_through_a_view(x):
    SEEN[0] = x.sum()
    x.view(-1).add_(1)
    return x


def written_by_out(x):
    SEEN[0] = x.sum()
    return torch.add(x, 1, out=x)


def written_by_foreach(x):
    SEEN[0] = x.sum()
    torch._foreach_add_([x], 1.0)
    return x


def written_in_a_copy(x):
    y = x.clone()
    y[0] = 2
    return y, x


def saved_for_backward(x):
    SEEN[0] = x.sum()
    return WEIGHT * x


def added_under_gradients(x):
    return WEIGHT + x, (WEIGHT * 1 + x.sum()).sum() * 2


def copied_under_gradients(x):
    y = WEIGHT * 1
    y.copy_(x)
    y += x
    return y


def written_through_an_expanded_view(x):
    SEEN[0] = x.sum()
    torch.ones(3).expand(5, 3).add_(1)
    return x


def written_to_an_expanded_output(x):
    SEEN[0] = x.sum()
    return torch.add(x.clone(), 1, out=torch.ones(3).expand(2, 3))


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__code__", None) and f.__module__ == __name__]


def outcome(function, mode):
    with torch.inference_mode():
        x = torch.arange(6.0).view(2, 3)
    SEEN[0] = None
    with mode():
        try:
            found = torch.utils._pytree.tree_leaves(function(x))
        except RuntimeError as error:
            return str(error), SEEN[0], x
    return [(t.tolist(), t.requires_grad, t.is_inference()) for t in found], SEEN[0], x


@pytest.mark.parametrize("mode", (torch.enable_grad, torch.no_grad, torch.inference_mode))
@pytest.mark.parametrize("backend", ("eager", "codegen"))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_eager(program, backend, mode):
    compiled = treadle.compile(program, backend=backend)
    for _ in range(2):
        assert repr(outcome(compiled, mode)) == repr(outcome(program, mode))
