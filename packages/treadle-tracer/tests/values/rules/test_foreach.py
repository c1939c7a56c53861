"""`torch._foreach_*`: what the calls give, besides what they compute."""

from __future__ import annotations

import torch
from compile_runs import compiled


def in_place(x):
    tensors, pair = [x * 1, x * 2], (x * 3, x * 4)
    named = torch._foreach_mul_(self=tensors, scalar=2.0)
    found = [torch._foreach_zero_(pair) is pair, torch._foreach_add_(tensors, 1) is tensors, named is tensors]
    return tensors, pair, found, torch._foreach_copy_(tensors, pair) is tensors, type(torch._foreach_abs(tensors))


def test_in_place_calls_give_the_list_they_were_given():
    fast, said = compiled(in_place)
    for n in (2, 3):
        got, want = fast(torch.ones(n)), in_place(torch.ones(n))
        for mine, others in zip((*got[0], *got[1]), (*want[0], *want[1])):
            assert torch.equal(mine, others)
        assert got[2:] == want[2:] == ([True, True, True], True, tuple)
    assert not said.breaks and not said.skips
