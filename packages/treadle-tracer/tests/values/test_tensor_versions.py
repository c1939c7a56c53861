"""`_version` of tensors that the program makes is a constant of the trace; that of outside tensors is left to Python."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compile_runs import compiled

WRITES = {
    "nothing": lambda y: None,
    "add_": lambda y: y.add_(1),
    "two": lambda y: y.add_(1).mul_(2),
    "item": lambda y: y.__setitem__(0, 1.0),
    "of a view": lambda y: y[0].add_(1),
    "of the data": lambda y: y.data.add_(1),
    "of the detached": lambda y: y.detach().add_(1),
    "out": lambda y: torch.add(torch.ones(4, 4), 1, out=y),
    "by argument": lambda y: F.hardswish(y, True),
    "composite": lambda y: y.addmm_(torch.ones(4, 4), torch.ones(4, 4)),
    "scatter_": lambda y: y.scatter_(0, torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4)),
    "statistics": lambda y: F.batch_norm(torch.ones(3, 4), y[0], y[1], training=True),
    "of sizes": lambda y: y.unsqueeze_(0),
    "foreach": lambda y: torch._foreach_add_([y], 1.0),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_of_a_tensor_of_the_program(name, requires_grad):
    def program(x):
        y = x + 1
        WRITES[name](y)
        return y * y._version, y._version, y.view(-1)._version

    run, said = compiled(program)
    if requires_grad and name in ("out", "statistics"):
        pytest.skip("it takes no tensors that require gradients")
    for size in (4, 4, 4):
        x = torch.randn(size, 4, requires_grad=requires_grad)
        expected = program(x)
        found = run(x)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1:] == expected[1:]
    assert not said.breaks and not said.skips


def test_of_an_outside_tensor():
    def program(x):
        before = x._version
        x.add_(1)
        return x[0] * 2, before, x._version

    run, _ = compiled(program)
    x, mine = torch.ones(3), torch.ones(3)
    for _ in range(3):
        assert run(mine)[1:] == program(x)[1:]
        mine.mul_(2), x.mul_(2)
