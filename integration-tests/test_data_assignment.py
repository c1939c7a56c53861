"""`x.data = y`: the object `x` has the elements and the memory of `y`, its own history, and its own version counter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import treadle


def averaged(p, q, x):
    p.data = 0.75 * p.data + 0.25 * q.data
    return p.data * x


def averaged_and_used(p, q, x):
    p.data = 0.75 * p.data + 0.25 * q.data
    return p * x


def averaged_without_gradients(p, q, x):
    with torch.no_grad():
        p.data = 0.75 * p + 0.25 * q
        y = p * x
    return y, p + x


def used_before(p, q, x):
    y = p * x
    p.data = q * 2
    return y, p.data + 1


def in_a_loop(p, q, x):
    for k in range(3):
        p.data = p.data * 0.5 + k
        q.data = q.data + p.data
    return x * p.data


def shared_memory(p, q, x):
    p.data = q.data
    q.data.add_(1)
    return p.data * x


def shared_memory_written_through_the_other(p, q, x):
    p.data = q.data
    p.data.mul_(2)
    with torch.no_grad():
        q.add_(1)
    return q.data * x


def kept_from_before(p, q, x):
    old = p.data
    p.data = q.data + 1
    old.add_(1)
    return old, p.data * x


def exchanged(p, q, x):
    p.data, q.data = q.data, p.data
    return p.data - q.data + x


def itself(p, q, x):
    p.data = p.data
    return p.data + x


def assigned_to_results(p, q, x):
    y = x * 2
    y.data = p.data + 1
    return y


def assigned_to_what_shares_memory(p, q, x):
    y = x * 2
    part = y[1:]
    y.data = q.data + 1
    part.add_(1)
    y.mul_(2)
    z = y.detach()
    y.data = z
    y.sub_(1)
    return part, y, z, y.view(2, 2)


def another_size(p, q, x):
    p.data = torch.cat([p.data, q.data])
    return p.data.max() + x


def another_dtype(p, q, x):
    p.data = p.data.double()
    return p.data + x


def other_strides(p, q, x):
    p.data = torch.stack([p.data, q.data])[:, 0].clone().expand(2)[:1].expand(4)
    return p.data + x


def of_an_argument(p, q, x):
    x.data = x.data * 3
    return x + p.data


def questions(p, q, x):
    before = p
    p.data = q.data * 2
    return p is before, p.requires_grad, p.shape, p.data.is_leaf, p.is_leaf, p._version


def raised_behind(p, q, x):
    p.data = p.data + 1
    if x.shape[0] == 4:
        raise ValueError("behind")


def broken_between(p, q, x):
    p.data = p.data + 1
    print(p.data.sum().item() > -1e9, end="")
    p.data = p.data * 2
    return p.data * x


PROGRAMS = (
    averaged,
    averaged_and_used,
    averaged_without_gradients,
    used_before,
    in_a_loop,
    shared_memory,
    shared_memory_written_through_the_other,
    kept_from_before,
    exchanged,
    itself,
    assigned_to_results,
    assigned_to_what_shares_memory,
    another_size,
    another_dtype,
    other_strides,
    of_an_argument,
    questions,
    raised_behind,
    broken_between,
)
WHOLE = {averaged, averaged_without_gradients, in_a_loop, shared_memory, kept_from_before, exchanged, itself}


def _seen(tensor):
    grad = None if tensor.grad is None else tensor.grad.tolist()
    return tensor.detach().tolist(), tensor.dtype, tensor.requires_grad, tensor._version, tensor.is_leaf, grad


def _outcome(function, kind, requires_grad, calls):
    torch.manual_seed(0)
    p, q = (
        kind(torch.randn(4)) if kind is nn.Parameter else torch.randn(4).requires_grad_(requires_grad) for _ in range(2)
    )
    found = []
    for call in range(calls):
        x = torch.arange(4.0) + call
        try:
            result = function(p, q, x)
        except Exception as error:
            result = (type(error).__name__, str(error)[:60])
        parts = result if isinstance(result, tuple) else (result,)
        losses = [part.sum() for part in parts if isinstance(part, torch.Tensor) and part.requires_grad]
        if losses:
            sum(losses).backward()
        memory = [p.data_ptr() == q.data_ptr(), p.data_ptr() == x.data_ptr()]
        results = [_seen(part) if isinstance(part, torch.Tensor) else part for part in parts]
        shared = [isinstance(part, torch.Tensor) and part.data_ptr() == p.data_ptr() for part in parts]
        found.append([results, shared, memory, _seen(p), _seen(q), _seen(x)])
    return found


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "codegen"))
@pytest.mark.parametrize("kind", ("plain", "gradients", "parameters"))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_like_eager(program, kind, backend):
    cls = nn.Parameter if kind == "parameters" else torch.Tensor
    run = treadle.compile(program, backend=backend, options={"leave_unprofitable": False})
    expected = _outcome(program, cls, kind == "gradients", 3)
    assert _outcome(run, cls, kind == "gradients", 3) == expected
    if program in WHOLE:
        codes = [reason.code for reason in treadle.stats().breaks]
        assert not codes or (program is averaged_without_gradients and kind != "plain"), codes


@pytest.mark.parametrize("backend", ("aot_eager", "codegen"))
def test_a_momentum_encoder(backend):
    """One graph up to the first use under gradients: the loop over the parameters is not left between them."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fast, self.slow = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2))

        def forward(self, x):
            with torch.no_grad():
                for fast, slow in zip(self.fast.parameters(), self.slow.parameters(), strict=True):
                    slow.data = slow.data * 0.9 + fast.data * 0.1
                target = self.slow(x)
            return (self.fast(x) - target).pow(2).mean()

    found = []
    for compiles in (False, True):
        model = Pair()
        run = treadle.compile(model, backend=backend) if compiles else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for step in range(4):
            optimizer.zero_grad()
            loss = run(torch.full((5, 4), 0.1 * step))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found.append([*losses, *model.parameters()])
    torch.testing.assert_close(found[1], found[0])
    assert not treadle.stats().breaks
