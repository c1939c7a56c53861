"""`tensor.register_hook` inside a compiled function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import treadle

SCALE = [0.5]
SEEN: list[float] = []


def scaled(x, w):
    h = (x @ w).tanh()
    h.register_hook(lambda g: g * 0.5)
    return h * 2


def clipped_twice(x, w):
    h = (x @ w).tanh()
    h.register_hook(lambda g: g.clamp(-0.1, 0.1))
    y = h.relu()
    y.register_hook(lambda g: torch.where(g > 0, g, -g))
    return y + h


def two_hooks_of_one_tensor(x, w):
    h = (x @ w).tanh()
    h.register_hook(lambda g: g * 2)
    h.register_hook(lambda g: g + 1)
    return h * 3


def used_before(x, w):
    h = (x @ w).tanh()
    y = h * 3
    h.register_hook(lambda g: g * 0.5)
    return y + h


def returns_nothing(x, w):
    h = (x @ w).tanh()
    h.register_hook(lambda g: None)
    return h * 2


def reads_from_outside(x, w):
    h = (x @ w).tanh()
    h.register_hook(lambda g: g * SCALE[0])
    return h * 2


def reads_another_tensor(x, w):
    h = (x @ w).tanh()
    mask = h.detach() > 0
    h.register_hook(lambda g: g * mask)
    return h * 2


def writes_outside(x, w):
    h = (x @ w).tanh()
    h.register_hook(lambda g: SEEN.append(g.sum().item()))
    return h * 2


def writes_to_what_the_function_made(x, w):
    kept = {}
    h = (x @ w).tanh()
    h.register_hook(lambda g: kept.__setitem__("gradient", g))
    (h * 2).sum().backward()
    w.grad = None
    x.grad = None
    return kept["gradient"] + h.detach()


def stores_into_a_cell(x, w):
    kept = None

    def hook(g):
        nonlocal kept
        kept = g

    h = (x @ w).tanh()
    h.register_hook(hook)
    (h * 2).sum().backward()
    w.grad = None
    x.grad = None
    return kept + h.detach()


def removed_again(x, w):
    h = (x @ w).tanh()
    handle = h.register_hook(lambda g: g * 0)
    handle.remove()
    return h * 2


def removed_where_it_can_be(x, w):
    h = (x @ w).tanh()
    handle = h.register_hook(lambda g: g * 0.5)
    try:
        handle.remove()
    except AttributeError:
        return h * 100
    return h * 2


def handle_returned(x, w):
    h = (x @ w).tanh()
    return h * 2, type(h.register_hook(lambda g: g * 0)).__name__


def of_a_leaf(x, w):
    handle = w.register_hook(lambda g: g * 3)
    y = (x @ w).sum()
    y.backward()
    handle.remove()
    found = w.grad.clone()
    w.grad = x.grad = None
    return found


def changed_in_place_behind(x, w):
    h = (x @ w) * 1.5
    h.register_hook(lambda g: g * 0.5)
    h += 1
    return h * 2


def in_a_loop(x, w):
    for _ in range(3):
        x = (x @ w).tanh()
        x.register_hook(lambda g: g * 0.5)
    return x * 2


def with_the_step_inside(x, w):
    h = (x @ w).tanh()
    h.register_hook(lambda g: g * 0.5)
    h.pow(2).sum().backward()
    found = w.grad.clone()
    w.grad = x.grad = None
    return found


def without_gradients(x, w):
    with torch.no_grad():
        h = x @ w
        try:
            h.register_hook(lambda g: g)
        except RuntimeError as error:
            return x * w.sum(), str(error)[:30]


PROGRAMS = (
    scaled,
    clipped_twice,
    two_hooks_of_one_tensor,
    used_before,
    returns_nothing,
    reads_from_outside,
    reads_another_tensor,
    writes_outside,
    writes_to_what_the_function_made,
    stores_into_a_cell,
    removed_again,
    removed_where_it_can_be,
    handle_returned,
    of_a_leaf,
    changed_in_place_behind,
    in_a_loop,
    with_the_step_inside,
    without_gradients,
)
WHOLE = {
    scaled,
    clipped_twice,
    returns_nothing,
    reads_from_outside,
    reads_another_tensor,
    in_a_loop,
    with_the_step_inside,
}


def _outcomes(function):
    torch.manual_seed(0)
    w = (torch.randn(4, 4) / 2).requires_grad_()
    found = []
    for call in range(3):
        SEEN.clear()
        SCALE[0] = 0.5 + (call == 2)
        x = torch.randn(3, 4).requires_grad_()
        result = function(x, w)
        parts = result if isinstance(result, tuple) else (result,)
        losses = [part.sum() for part in parts if isinstance(part, torch.Tensor) and part.requires_grad]
        if losses:
            sum(losses).backward()
        tensors = [part.detach() for part in parts if isinstance(part, torch.Tensor)]
        found.append([tensors, [part for part in parts if isinstance(part, str)], x.grad, w.grad, list(SEEN)])
        w.grad = None
    return found


@pytest.mark.filterwarnings("error:.*treadle", "error:.*bug")
@pytest.mark.parametrize("backend", ("eager", "aot_eager", "codegen"))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_like_eager(program, backend):
    run = treadle.compile(program, backend=backend, options={"leave_unprofitable": False})
    for expected, found in zip(_outcomes(program), _outcomes(run), strict=True):
        assert found.pop(1) == expected.pop(1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if program in WHOLE:
        assert not treadle.stats().breaks


def test_a_model_unrolled_through_time():
    """MuZero halves the gradient of its state at every step."""
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        dynamics, reward = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), nn.Linear(4, 1)
        optimizer = torch.optim.SGD([*dynamics.parameters(), *reward.parameters()], 0.1)

        def step(state, actions, rewards, dynamics=dynamics, reward=reward, optimizer=optimizer):
            loss = 0.0
            for k in range(actions.shape[1]):
                state = dynamics(torch.cat([state, actions[:, k]], -1))
                state.register_hook(lambda gradient: gradient * 0.5)
                loss = loss + (reward(state).squeeze(-1) - rewards[:, k]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = treadle.compile(step) if compiles else step
        found.append([run(torch.ones(5, 4), torch.ones(5, 3, 2), torch.zeros(5, 3)) for _ in range(4)])
    torch.testing.assert_close(found[1], found[0])
    assert not treadle.stats().breaks
