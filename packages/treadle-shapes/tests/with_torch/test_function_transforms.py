"""The state of PyTorch's transforms, on the public transforms of torch.func."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.func import grad, hessian, vmap  # noqa: E402

from treadle_shapes.torch import (  # noqa: E402
    dispatch_keys_restored,
    fake_like,
    fake_mode,
    is_transforming,
    outside_transforms,
    unwrapped,
)


def test_tensors_inside_transforms_are_unwrapped():
    x = torch.ones(3, 4)
    seen = []

    def inside(t):
        seen.append((is_transforming(), unwrapped(t) is x, t.shape))
        return t.sum()

    vmap(grad(inside))(x)
    assert seen == [(True, True, (4,))]
    assert unwrapped(x) is x and not is_transforming()


def test_a_tensor_made_outside_the_running_transforms_belongs_to_none():
    made = []

    def inside(t):
        with outside_transforms():
            made.append((is_transforming(), torch.ones(2, requires_grad=True)))
        return (t * made[0][1].sum()).sum()

    assert torch.equal(grad(inside)(torch.ones(3)), torch.full((3,), 2.0))
    assert not made[0][0] and unwrapped(made[0][1]) is made[0][1] and made[0][1].is_leaf


def test_dispatch_keys_are_restored_after_an_exception():
    state = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with pytest.raises(ZeroDivisionError), dispatch_keys_restored():
        torch._C._dispatch_tls_set_dispatch_key_excluded("AutogradCPU", True)
        raise ZeroDivisionError
    after = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    assert [str(keys) for keys in state] == [str(keys) for keys in after]


def test_fake_zeros_of_derivatives_have_memory():
    """Zeros without memory made this raise, and left the thread's dispatch keys as they were inside (torch 2.13)."""
    mode = fake_mode()
    x = fake_like(mode, torch.ones(3, 4))
    with mode:
        assert vmap(hessian(lambda a: (a * a * a).sum()))(x).shape == (3, 4, 4)
        assert not torch._efficientzerotensor((2,))._is_zerotensor()
