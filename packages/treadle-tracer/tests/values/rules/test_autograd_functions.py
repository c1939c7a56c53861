"""Custom functions whose gradients apply themselves: derivatives of all orders, without end in a trace."""

import pytest
import torch
from compile_runs import compiled


class Sin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Cos.apply(*ctx.saved_tensors)


class Cos(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * Sin.apply(*ctx.saved_tensors)


def program(x):
    return (Sin.apply(x * 2) + 1).sum()


def derivatives(run, x, most):
    """The value and derivatives up to an order."""
    found = [run(x)]
    for _ in range(most):
        found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
    return found


def test_functions_in_whose_gradients_each_applies_the_other_are_left_to_python():
    run, seen = compiled(program)
    for _ in range(2):
        x = torch.randn(4, requires_grad=True)
        torch.testing.assert_close(derivatives(run, x, 4), derivatives(program, x, 4))
    assert seen.breaks[0].code == "autograd-function"
    assert "recursion" not in {found.code for found in seen.breaks}


def test_without_gradients_they_are_part_of_the_graph():
    run, seen = compiled(program)
    x = torch.randn(4)
    torch.testing.assert_close(run(x), program(x))
    assert len(seen.graphs) == 1 and not seen.breaks


class Weight(torch.Tensor):
    """Has functions of its own for PyTorch's, which compute with what it holds."""

    def __new__(cls, inner):
        return torch.Tensor._make_subclass(cls, inner, True)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function is torch.mul:
            return Scaled.apply(*args)
        return super().__torch_function__(function, kinds, args, kwargs or {})


class Plain(torch.Tensor):
    pass


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.needed = ctx.needs_input_grad
        weight = weight.inner if isinstance(weight, Weight) else weight
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, None if isinstance(weight, Weight) else gradient * x


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize(
    "make", [Weight, lambda w: w.as_subclass(Plain).requires_grad_(), lambda w: w.as_subclass(Plain)]
)
def test_arguments_of_other_classes_that_require_gradients(make, grad_mode):
    def apply(x, weight):
        with torch.set_grad_enabled(grad_mode):
            return Scaled.apply(x, weight), torch.mul(x, weight)

    run, _ = compiled(apply)
    for _ in range(2):
        x, weight = torch.randn(4, 3), make(torch.randn(3))
        for one, other in zip(run(x, weight), apply(x, weight), strict=True):
            assert torch.equal(one, other) and type(one) is type(other)
            assert one.requires_grad == other.requires_grad
            if one.requires_grad:
                gradients = [torch.autograd.grad(y.sum(), weight)[0] for y in (one, other)]
                assert torch.equal(*gradients)
