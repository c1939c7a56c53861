"""Hooks of saved tensors that give back others than they were given."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from treadle_autograd import aot
from treadle_autograd.partition import save_everything
from treadle_autograd.unpacked import layouts_to_restore, unpacked


def program(x, w):
    h = (x @ w).exp()
    k = (x.t() * w.sum()).sin().expand(2, -1, -1)
    return (h.sin() * h).sum() + (k.exp() * k).sum()


def kernel_like(graph, inputs):
    """Reads memory by the strides that it was compiled for, as generated kernels do."""
    layouts = [(t.size(), t.stride()) if isinstance(t, torch.Tensor) else None for t in inputs]

    def run(*args):
        given = [
            a if layout is None or not a.numel() else torch.as_strided(a, *layout)
            for a, layout in zip(args, layouts, strict=True)
        ]
        return graph.forward(*given)

    return run


def leaves():
    torch.manual_seed(0)
    return torch.randn(4, 6).t().detach().requires_grad_(), torch.randn(4, 5).requires_grad_()


def gradients(run, hooks, hooked_leaf=False):
    x, w = leaves()
    if hooked_leaf:
        w.register_post_accumulate_grad_hook(lambda p: None)
    with hooks():
        result = run(x, w)
    (result if isinstance(result, torch.Tensor) else result[0]).backward()
    return x.grad, w.grad


def same(t):
    return t


HOOKS = {
    "contiguous": lambda: saved_tensors_hooks(torch.Tensor.contiguous, same),
    "transposed": lambda: saved_tensors_hooks(lambda t: t.mT.contiguous().mT if t.dim() > 1 else t.clone(), same),
    "on cpu": lambda: save_on_cpu(),
    "wide and back": lambda: saved_tensors_hooks(lambda t: t.double().contiguous(), lambda t: t.float()),
    "conjugate": lambda: saved_tensors_hooks(lambda t: torch.neg(t), lambda t: t._neg_view()),
}


@pytest.mark.parametrize("hooked_leaf", [False, True])
@pytest.mark.parametrize("partition", [None, save_everything])
@pytest.mark.parametrize("name", HOOKS)
def test_gradients_are_eagers(name, partition, hooked_leaf):
    compilers = {"forward": kernel_like, "backward": kernel_like}
    run = aot(fx.symbolic_trace(program), list(leaves()), inference=False, partition=partition, **compilers)
    expected, found = gradients(program, HOOKS[name]), gradients(run, HOOKS[name], hooked_leaf)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_other_sizes_raise():
    compilers = {"forward": kernel_like, "backward": kernel_like}
    run = aot(fx.symbolic_trace(program), list(leaves()), inference=False, **compilers)
    with pytest.raises(RuntimeError, match="a hook of saved tensors has given back a tensor of sizes"):
        gradients(run, lambda: saved_tensors_hooks(torch.Tensor.flatten, same))


LAYOUTS = {
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "expanded": torch.arange(3.0)[:, None].expand(3, 4),
    "overlapping": torch.arange(6.0).unfold(0, 3, 1),
    "with gaps": torch.arange(24.0).view(4, 6)[:, ::2],
    "a part": torch.arange(12.0).view(3, 4)[1:],
    "a number": torch.tensor(3.0),
    "nothing": torch.empty(0, 3),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    saved = LAYOUTS[name]
    with HOOKS["contiguous"]():
        layouts = layouts_to_restore([saved])
    for given in (saved, saved.contiguous(), saved.double()):
        (found,) = unpacked([given], layouts)
        assert torch.equal(found, saved) and found.stride() == saved.stride() and found.dtype == saved.dtype
    assert layouts_to_restore([saved]) is None
