"""Custom functions whose gradients apply themselves: derivatives of all orders, without end in a trace."""

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
