"""Custom functions whose gradients apply themselves: derivatives of all orders, of which a trace has the first ones."""

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


class Power(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x**n

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.n * Power.apply(x, ctx.n - 1), None


class Both(torch.autograd.Function):
    """Two results, and gradients that may be missing."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x * y, x * x

    @staticmethod
    def backward(ctx, *gradients):
        x, y = ctx.saved_tensors
        of_x = of_y = None
        if gradients[0] is not None:
            product, square = Both.apply(gradients[0], y)
            of_x, of_y = product + 0 * square, gradients[0] * x
        if gradients[1] is not None:
            more = 2 * Both.apply(gradients[1], x)[0]
            of_x = more if of_x is None else of_x + more
        return of_x, of_y


@pytest.mark.parametrize(
    "program",
    [
        program,
        lambda x: Power.apply(x * 2, 6).sum(),
        lambda x: Both.apply(x * 2, x.sin())[0].sum(),
        lambda x: sum(y.sum() for y in Both.apply(x.cos(), x)),
    ],
)
def test_functions_whose_gradients_apply_them_again(program):
    run, seen = compiled(program)
    for order in (1, 4, 5):
        x = torch.randn(4, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(derivatives(run, x, order), derivatives(program, x, order))
    assert len(seen.graphs) == 1 and not seen.breaks


def test_higher_derivatives_inside_a_graph_are_left_to_python():
    def third(x):
        return derivatives(program, x, 4)[-1]

    run, seen = compiled(third)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(run(x), third(x))
    assert "inside a graph" in str(seen.breaks[0])


class Exponent:
    def __init__(self, n):
        self.n = n


class Held(torch.autograd.Function):
    """The trace makes an object that the function is applied with."""

    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x**exponent.n

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        n = ctx.exponent.n
        return gradient * n * Held.apply(x, Exponent(n - 1)), None


def _with_an_object_of_the_trace(x):
    return Held.apply(x, Exponent(5)).sum()


def _with_a_class_of_the_trace(x):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * 2 * Square.apply(x) / x

    return Square.apply(x).sum()


@pytest.mark.parametrize("program", [_with_an_object_of_the_trace, _with_a_class_of_the_trace])
def test_a_function_that_cannot_be_called_again_has_two_derivatives(program):
    run, seen = compiled(program)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(derivatives(run, x, 2), derivatives(program, x, 2))
    assert len(seen.graphs) == 1 and not seen.breaks
    with pytest.raises(RuntimeError, match="no third derivatives through .*, whose gradients apply it again"):
        derivatives(run, x, 3)


noted: list[str] = []


class Noted(torch.autograd.Function):
    """Both bodies write to the same list."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        noted.append("forward")
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        noted.append("backward")
        return gradient * ctx.saved_tensors[0].exp()


def test_a_backward_body_that_writes_where_the_forward_body_has_written():
    def program(x):
        return Noted.apply(x).sum()

    run, _ = compiled(program)
    for _ in range(2):
        noted.clear()
        found = run(torch.ones(2, requires_grad=True))
        assert noted == ["forward"]
        found.backward()
        assert noted == ["forward", "backward"]


def _counted_in_a_cell(x):
    count = 0

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            nonlocal count
            count += 1
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            nonlocal count
            count += 10
            return gradient * ctx.saved_tensors[0].exp()

    return Exp.apply(x).sum(), lambda: count


def _counted_in_its_class(x):
    class Exp(torch.autograd.Function):
        count = 0

        @staticmethod
        def forward(ctx, x):
            Exp.count += 1
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            Exp.count += 10
            return gradient * ctx.saved_tensors[0].exp()

    return Exp.apply(x).sum(), lambda: Exp.count


def _listed_behind_a_closure(x):
    rows = []
    holder = Exponent(rows)

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            holder.n.append("forward")
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            holder.n.append("backward")
            return gradient * ctx.saved_tensors[0].exp()

    return Exp.apply(x).sum(), lambda: list(rows)


@pytest.mark.parametrize("program", [_counted_in_a_cell, _counted_in_its_class, _listed_behind_a_closure])
def test_a_backward_body_that_writes_to_what_the_trace_has_made(program):
    run, _ = compiled(program)
    found = []
    for function in (run, program, run):
        loss, count = function(torch.ones(2, requires_grad=True))
        before = count()
        loss.backward()
        found.append((before, count()))
    assert found[0] == found[1] == found[2]


class LeftToPython(torch.autograd.Function):
    """All that a context is told, in a function whose backward body writes to something outside."""

    @staticmethod
    def forward(ctx, x, y, scale):
        ctx.set_materialize_grads(False)
        y.add_(1)
        ctx.mark_dirty(y)
        middle = x * scale
        whole = (middle.detach() * 3).round()
        ctx.mark_non_differentiable(whole)
        ctx.save_for_backward(x, None, y, middle)
        ctx.scale = scale
        return middle * y, y, whole

    @staticmethod
    def backward(ctx, *gradients):
        x, nothing, y, middle = ctx.saved_tensors
        noted.append((nothing, [gradient is None for gradient in gradients], torch.equal(middle, x * ctx.scale)))
        product, of_y, whole = gradients
        return product * y * ctx.scale, product * middle + (0 if of_y is None else of_y), None


def test_a_context_of_python_in_a_forward_body_of_its_own_graph():
    def program(x, y):
        y = y * 2
        product, same, whole = LeftToPython.apply(x + 1, y, 3.0)
        return product, same is y, whole, y

    run, seen = compiled(program)
    found = []
    for function in (run, program, run):
        noted.clear()
        x, y = (torch.arange(4.0).requires_grad_() for _ in range(2))
        product, *others = function(x, y)
        (product.sum() + others[-1].square().sum()).backward()
        found.append((product.tolist(), [str(other) for other in others], x.grad.tolist(), y.grad.tolist(), *noted))
        noted.clear()
        product, *others = function(x, y)
        product.sum().backward()
        found[-1] += (x.grad.tolist(), y.grad.tolist(), *noted)
    assert found[0] == found[1] == found[2]
    assert [reason.code for reason in seen.breaks] == ["autograd-function"]


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
