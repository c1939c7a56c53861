"""Custom `autograd.Function`s inside compiled functions: one graph, gradients as in eager; otherwise a break with a reason."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treadle

Program = Callable[[torch.Tensor, torch.Tensor], Any]


class Scaled(torch.autograd.Function):
    """An argument that is no tensor, saved tensors (an output among them), an attribute of the context."""

    @staticmethod
    def forward(ctx, x, scale):
        y = x.exp() * scale
        ctx.save_for_backward(y, x)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, gradient):
        y, x = ctx.saved_tensors
        return gradient * y * 2 + x.sin() * ctx.scale, None


class RmsNorm(torch.autograd.Function):
    """`setup_context`, a result without gradients, `needs_input_grad`, `once_differentiable`."""

    @staticmethod
    def forward(x, weight, eps):
        inverse = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return x * inverse * weight, inverse

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _):
        x, weight, inverse = ctx.saved_tensors
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            scaled = gradient * weight
            of_x = inverse * (scaled - x * inverse * inverse * (scaled * x).mean(-1, keepdim=True))
        if ctx.needs_input_grad[1]:
            of_weight = (gradient * x * inverse).reshape(-1, x.shape[-1]).sum(0)
        return of_x, of_weight, None


class Round(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reverse(torch.autograd.Function):
    """Returns its argument."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Pair(torch.autograd.Function):
    """Tells missing gradients from zeros."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        if first is None:
            return None if second is None else second * 7
        return first * 5 if second is None else first * 2 + second * 3


class InPlace(torch.autograd.Function):
    """Changes its argument."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class InPlaceOfTwo(torch.autograd.Function):
    """Changes its argument through views and by another tensor, which it saves; a second result; a number."""

    @staticmethod
    def forward(ctx, x, y, scale):
        x.view(-1)[:3] = y[0, 0]
        x.t().mul_(y.t())
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return x, y * scale

    @staticmethod
    def backward(ctx, gradient, other):
        (y,) = ctx.saved_tensors
        return gradient * y, gradient * 2 * y + other * ctx.scale, None


class Names(torch.autograd.Function):
    """Saves an intermediate result, an argument that may be None; attributes with names of methods; undefined gradients; a text."""

    @staticmethod
    def forward(ctx, x, w, bias, name):
        h = x @ w
        ctx.save_for_backward(x, w, h, bias)
        ctx.name, ctx.register_hook = name, 3.0
        ctx.set_materialize_grads(False)
        return torch.relu(h) + (0 if bias is None else bias), h.argmax(-1), h * 2

    @staticmethod
    def backward(ctx, of_relu, _, of_double):
        x, w, h, bias = ctx.saved_tensors
        found = [] if of_relu is None else [of_relu * (h > 0)]
        found += [] if of_double is None else [of_double * len(ctx.name) * ctx.register_hook]
        if not found:
            return None, None, None, None
        total = sum(found)
        of_bias = of_relu.sum(0) if bias is not None and of_relu is not None else None
        return total @ w.t(), x.t() @ total, of_bias, None


class Power(torch.autograd.Function):
    """Rules for forward mode and for vmap beside the backward body."""

    @staticmethod
    def forward(x, n):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, n = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.n = n

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.n * x ** (ctx.n - 1), None

    @staticmethod
    def jvp(ctx, tangent, _):
        (x,) = ctx.saved_tensors
        return tangent * ctx.n * x ** (ctx.n - 1)

    @staticmethod
    def vmap(info, in_dims, x, n):
        return Power.apply(x, n), in_dims[0]


class Largest(torch.autograd.Function):
    """An integer result, a size in the backward body, an in-place call on a tensor of its own."""

    @staticmethod
    def forward(ctx, x):
        values, places = x.max(-1)
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return values, places

    @staticmethod
    def backward(ctx, gradient, _):
        (places,) = ctx.saved_tensors
        made = gradient.new_zeros(ctx.shape)
        made.scatter_(-1, places.unsqueeze(-1), gradient.unsqueeze(-1))
        return made


class Turned(torch.autograd.Function):
    """Returns a view."""

    @staticmethod
    def forward(ctx, x):
        return x.t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.t() * 2


class Masked(torch.autograd.Function):
    """Tensors that are kept as attributes, in a dict, too."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask, ctx.more = x > 0, {"double": x * 2}
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.where(ctx.mask, gradient, ctx.more["double"])


class Recomputed(torch.autograd.Function):
    """Runs forward again under autograd."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx, gradient):
        x, w = (tensor.detach().requires_grad_(True) for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            y = torch.tanh(x @ w)
        return torch.autograd.grad(y, (x, w), gradient)


class Nested(torch.autograd.Function):
    """Applies another custom function in both directions."""

    @staticmethod
    def forward(ctx, x):
        return Masked.apply(x) * 2

    @staticmethod
    def backward(ctx, gradient):
        return Reverse.apply(gradient) + 1


class OfList(torch.autograd.Function):
    """Tensors in a list get no gradients."""

    @staticmethod
    def forward(ctx, xs, scale):
        return xs[0] * scale

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient.sum()


PROGRAMS: dict[str, Program] = {
    "scaled": lambda x, w: Scaled.apply(x @ w, 3.0).sum(),
    "setup_context": lambda x, w: RmsNorm.apply(x, w[0], 1e-6)[0].pow(2).sum(),
    "straight_through": lambda x, w: (Round.apply(x @ w * 3) * (x @ w)).sum(),
    "identity": lambda x, w: (Reverse.apply(x) @ w).sum(),
    "one_of_two_is_used": lambda x, w: Pair.apply(x @ w)[0].sum(),
    "both_are_used": lambda x, w: torch.mul(*Pair.apply(x @ w)).sum(),
    "one_of_two_gets_a_gradient": lambda x, w: Pair.apply(x @ w),
    "constant_gradient_out_of_reach": lambda x, w: ((x @ w).sin(), Scaled.apply(x @ w, 2.0)),
    "dirty": lambda x, w: InPlace.apply(x @ w + 1).sin().sum(),
    "dirty_chain": lambda x, w: InPlace.apply(InPlace.apply(x @ w).mul_(w[0]).add_(1)).sin().sum(),
    "dirty_of_two": lambda x, w: sum(t.sin().sum() for t in InPlaceOfTwo.apply(x * 1, x @ w, 3.0)),
    "dirty_without_gradient": lambda x, w: InPlaceOfTwo.apply(torch.ones_like(x), x @ w, 2.0)[0].sin().sum(),
    "names": lambda x, w: Names.apply(x, w, w[0], "ab")[0].sum(),
    "names_of_others": lambda x, w: Names.apply(x, w, None, "ab")[2].sum(),
    "names_of_all": lambda x, w: sum(t.float().sum() for t in Names.apply(x, w, None, "ab")),
    "rules_for_others": lambda x, w: Power.apply(x @ w, 3).sum(),
    "integers": lambda x, w: Largest.apply(x @ w)[0].sum(),
    "view": lambda x, w: (Turned.apply(x @ w) * 3).sum(),
    "attributes": lambda x, w: Masked.apply(x @ w).sin().sum(),
    "recomputed": lambda x, w: Recomputed.apply(x, w).sum(),
    "nested": lambda x, w: Nested.apply(x @ w).sum(),
    "list": lambda x, w: OfList.apply([x], w.sum()).sum(),
    "twice": lambda x, w: Scaled.apply(Scaled.apply(x, 0.1) @ w, 0.2).sum(),
    "checkpointed": lambda x, w: checkpoint(
        lambda y: Scaled.apply(y.sin() @ w, 2.0).cos(), x, use_reentrant=False
    ).sum(),
    "gradient_inside": lambda x, w: (
        torch.autograd.grad(Masked.apply(x @ w).sum(), x, create_graph=True)[0].pow(2).sum()
    ),
    "autocast": lambda x, w: _autocast(lambda: Scaled.apply(x @ w * 0.01, 0.5) @ w).float().sum() * 0.001,
}


def _autocast(function: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return function()


def leaves(rows: int = 4, columns: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, columns).requires_grad_(), torch.randn(columns, columns).requires_grad_()


def first_of(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def gradients(function: Program, *sizes: int) -> list[Any]:
    x, w = leaves(*sizes)
    result = function(x, w)
    first_of(result).sum().backward()
    return [first_of(result).detach(), x.grad, w.grad]


def twice(function: Program) -> list[Any]:
    x, w = leaves()
    (gradient,) = torch.autograd.grad(first_of(function(x, w)).sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()
    return [gradient.detach(), x.grad, w.grad]


def assert_same(mine: list[Any], theirs: list[Any], rtol: float = 1e-4) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(one, other, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = treadle.compile(program, fullgraph=True, backend=backend)
    theirs = gradients(program)
    # Products of bfloat16 add up in another order, and are rounded to 8 bits then.
    rtol = 2e-2 if name == "autocast" else 1e-4
    for _ in range(2):
        assert_same(gradients(compiled), theirs, rtol)
    assert torch.is_grad_enabled() and not treadle.stats().eager_graphs
    if name != "checkpointed":
        assert treadle.explain(program)(*leaves()).graphs


@pytest.mark.parametrize(
    "name",
    [
        "scaled",
        "straight_through",
        "identity",
        "attributes",
        "recomputed",
        "both_are_used",
        "view",
        "dirty",
        "dirty_of_two",
    ],
)
def test_gradients_of_gradients(name: str) -> None:
    program = PROGRAMS[name]
    theirs = observed(lambda: twice(program))
    mine = observed(lambda: twice(treadle.compile(program, fullgraph=True)))
    assert type(mine) is type(theirs)
    if isinstance(theirs, list):
        assert_same(mine, theirs)


def observed(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except RuntimeError as error:
        return error


def test_once_differentiable_refuses_as_eager_does() -> None:
    program = PROGRAMS["setup_context"]
    theirs = observed(lambda: twice(program))
    mine = observed(lambda: twice(treadle.compile(program, fullgraph=True)))
    assert "once_differentiable" in str(theirs) and str(mine) == str(theirs)


@pytest.mark.parametrize("name", ["scaled", "setup_context", "integers", "both_are_used"])
def test_dynamic_sizes(name: str) -> None:
    program = PROGRAMS[name]
    compiled = treadle.compile(program)
    for sizes in ((4, 6), (5, 6), (9, 6), (7, 6)):
        assert_same(gradients(compiled, *sizes), gradients(program, *sizes))
    assert treadle.stats().graphs == 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_gradients(name: str) -> None:
    if name in ("gradient_inside", "checkpointed"):
        pytest.skip("needs gradients")
    program = PROGRAMS[name]
    with torch.no_grad():
        theirs = first_of(program(*leaves()))
        mine = first_of(treadle.compile(program, fullgraph=True)(*leaves()))
    assert_same([mine], [theirs])
    assert mine.requires_grad == theirs.requires_grad


def test_gradients_of_intermediate_outputs() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        hidden = Scaled.apply(x @ w, 0.3)
        return hidden, Reverse.apply(hidden.sin())

    found = []
    for function in (program, treadle.compile(program, fullgraph=True)):
        x, w = leaves()
        hidden, result = function(x, w)
        hidden.retain_grad()
        seen: list[Any] = []
        result.register_hook(seen.append)
        (result.pow(2).sum() + hidden.sum()).backward()
        found.append([hidden.grad, x.grad, w.grad, *seen])
    assert_same(found[1], found[0])


def test_changed_saved_tensors_raise_as_in_eager() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return Scaled.apply(x @ w, 1.0).mul_(2).sum()

    theirs = observed(lambda: gradients(program))
    mine = observed(lambda: gradients(treadle.compile(program)))
    assert isinstance(theirs, RuntimeError) and str(mine) == str(theirs)


@pytest.mark.parametrize("name", ["SwishMe", "MishMe", "HardSwishMe", "HardSigmoidMe", "HardMishMe"])
def test_activations_of_timm(name: str) -> None:
    pytest.importorskip("torchvision_schemas").define_missing_schemas()
    activations = pytest.importorskip("timm.layers.activations_me")
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), getattr(activations, name)(), torch.nn.Linear(8, 2))
    found = []
    for run in (model, treadle.compile(model, fullgraph=True)):
        model.zero_grad()
        x, _ = leaves()
        run(x).pow(2).sum().backward()
        found.append([x.grad, *[parameter.grad.clone() for parameter in model.parameters()]])
    assert_same(found[1], found[0])


# ---- what is left to Python

LOG: list[int] = []


class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        LOG.append(1)
        return gradient


class Draws(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return F.dropout(x, 0.5)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand_like(gradient)


class WritesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(2)


class WrongNumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        return gradient


LEFT_TO_PYTHON: dict[str, tuple[Program, str]] = {
    "writes_outside": (lambda x, w: Counts.apply(x @ w).sin().sum(), "writes to something that outlives it"),
    "random": (lambda x, w: Draws.apply(x @ w).sin().sum(), "draws random numbers"),
    "writes_gradient": (lambda x, w: WritesGradient.apply(x @ w).sin().sum(), "in place"),
    "wrong_number": (lambda x, w: WrongNumber.apply(x @ w, x).sum(), "returns 1 gradients for 2 arguments"),
}


@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_left_to_python(name: str) -> None:
    program, reason = LEFT_TO_PYTHON[name]
    found = []
    for function in (program, treadle.compile(program)):
        LOG.clear()
        found.append((observed(lambda function=function: gradients(function)), len(LOG), torch.rand(1)))
    (theirs, their_log, their_random), (mine, my_log, my_random) = found
    assert my_log == their_log and torch.equal(my_random, their_random)
    if isinstance(theirs, list):
        assert_same(mine, theirs)
    else:
        assert str(mine) == str(theirs)
    assert reason in str(treadle.explain(program)(*leaves()))


# ---- random programs

STEPS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda a, b: torch.sin(a) * b,
    lambda a, b: a + b.mean(-1, keepdim=True),
    lambda a, b: torch.tanh(a @ b.t()) @ b,
    lambda a, b: a.t().contiguous().t() * 0.5 + b,
    lambda a, b: torch.where(a > b, a, b * 0.3),
    lambda a, b: a.clone().mul_(0.7).add_(b),
    lambda a, b: torch.softmax(a, -1) - b,
    lambda a, b: a.reshape(-1).flip(0).view(a.shape) * b,
    lambda a, b: torch.stack([a, b]).sum(0),
]


def random_function(choose: random.Random) -> Any:
    """A custom function of two tensors whose bodies are random."""
    before, after, back = ([choose.choice(STEPS) for _ in range(choose.randint(1, 3))] for _ in range(3))
    saves_output, keeps, returns_two = choose.random() < 0.5, choose.random() < 0.5, choose.random() < 0.5
    materialises, identity, no_second = choose.random() < 0.8, choose.random() < 0.2, choose.random() < 0.3

    def forward(ctx, x, y, scale):
        a, b = x, y
        for step in before:
            a = step(a, b)
        if keeps:
            ctx.kept = a * scale
        b = a
        for step in after:
            b = step(b, x)
        ctx.set_materialize_grads(materialises)
        ctx.save_for_backward(*([x, y, b] if saves_output else [x, y, a]))
        if identity:
            return (b, x) if returns_two else x
        return (b, a + 1) if returns_two else b

    def backward(ctx, *gradients):
        x, y, other = ctx.saved_tensors
        given = [gradient for gradient in gradients if gradient is not None]
        if not given:
            return None, None, None
        total = given[0] * 0.5 + given[-1]
        for step in back:
            total = step(total, other)
        if keeps:
            total = total + ctx.kept
        return total, (None if no_second or not ctx.needs_input_grad[1] else total * y), None

    return type(
        "Random", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def random_program(choose: random.Random) -> Program:
    functions = [random_function(choose) for _ in range(choose.randint(1, 3))]
    plan = [
        (choose.randrange(len(functions)), choose.choice(STEPS), choose.random()) for _ in range(choose.randint(1, 4))
    ]

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        a, b = x * 0.3, x.sin()
        for which, step, switch in plan:
            result = functions[which].apply(a, b.detach() if switch < 0.2 else b, switch)
            if isinstance(result, tuple):
                a, b = result if switch < 0.7 else (result[0], b)
            else:
                a = result
            a = step(a, b) * 0.3
            if switch > 0.9:
                a = checkpoint(lambda t, step=step: step(t, x) * 0.2, a, use_reentrant=False)
        return a, b

    return program


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    check_random_program(seed, backend="codegen" if seed % 4 == 0 else "aot_eager")


def check_random_program(seed: int, backend: str) -> None:
    choose = random.Random(seed)
    program = random_program(choose)
    uses = choose.choice([(True, False), (False, True), (True, True)])

    def run(function: Program) -> list[Any]:
        torch.manual_seed(seed)
        x, w = (torch.randn(5, 5, dtype=torch.float64) for _ in range(2))  # chaotic programs: float32 is noise
        x, w = x.requires_grad_(choose_x), w.requires_grad_()
        a, b = function(x + w * 0 if not choose_x else x, w)
        used = [
            value.sin().sum() for value, is_used in zip((a, b), uses, strict=True) if is_used and value.requires_grad
        ]
        if not used:
            return [a.detach(), b.detach()]
        sum(used).backward()
        return [a.detach(), b.detach(), x.grad, w.grad]

    choose_x = choose.random() < 0.8
    compiled = treadle.compile(program, fullgraph=True, backend=backend)
    assert_same(run(compiled), run(program))


class WithConstants(torch.autograd.Function):
    """Its backward body makes constants, which become inputs of the graph behind those that the forward part has."""

    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=0) + torch.tensor([1.0, 2.0, 3.0])
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        found = grad.clone()
        found[y == 1] = 0
        return found * torch.tensor([3.0, 5.0, 7.0])


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3)

    def forward(self, x, seen, count):
        hidden = self.norm(self.linear(x))
        seen.mul_(2)
        y = WithConstants.apply(hidden) * self.linear.bias
        return y, seen[1:], seen, count, x.t()


@pytest.mark.filterwarnings("error:treadle")
def test_constants_of_a_backward_body_move_no_input():
    outcomes = []
    for compiler in (lambda model: model, treadle.compile):
        torch.manual_seed(0)
        model = Normalised()
        run, found = compiler(model), []
        for step in range(3):
            x, seen = torch.randn(4, 3, requires_grad=True), torch.ones(3)
            y, view, same, count, transposed = run(x, seen, step)
            assert same is seen and view.data_ptr() == seen[1:].data_ptr() and transposed.data_ptr() == x.data_ptr()
            (y.square().sum() + transposed.sum()).backward()
            found += [y.detach(), seen, count, x.grad, *(p.grad.clone() for p in model.parameters())]
        outcomes.append([*found, *model.buffers()])
    for mine, theirs in zip(outcomes[1], outcomes[0], strict=True):
        torch.testing.assert_close(mine, theirs)


class Affine(torch.autograd.Function):
    """A gradient that is not 0 where the one that is given is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.exp() + x.sin()


class Constant(Affine):
    """A gradient that is not computed from the one that is given."""

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones_like(gradient)


class Saved(Affine):
    """A gradient that is a saved tensor."""

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0]


class Through(Affine):
    @staticmethod
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("function", [Affine, Constant, Saved, Through], ids=lambda function: function.__name__)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_backward_passes_from_some_of_the_outputs(function, backend):
    def program(x, w):
        return function.apply(x.sin()), x.cos() * w, function.apply(x) * x

    compiled = treadle.compile(program, backend=backend, fullgraph=True)
    for size in (4, 5, 6):
        for count in (1, 2, 3):
            for chosen in itertools.combinations(range(3), count):
                found = []
                for run in (program, compiled):
                    x, w = (torch.linspace(0.1, 1, size) * k for k in (1, 2))
                    outputs = run(x.requires_grad_(), w.requires_grad_())
                    torch.autograd.backward([outputs[k].sum() for k in chosen])
                    found.append((x.grad, w.grad))
                for theirs, mine in zip(*found, strict=True):
                    assert (theirs is None) == (mine is None)
                    if theirs is not None:
                        torch.testing.assert_close(mine, theirs)


def test_adjoint_methods_are_compiled() -> None:
    """The backward pass takes the states of the solution as leaves, in their memory; the result is returned beside a loss of it."""
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3))

    def rate(y):
        return torch.tanh(y @ weight)

    class Adjoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, steps, weight):
            with torch.no_grad():
                states = [y]
                for _ in range(steps):
                    states.append(states[-1] + 0.1 * rate(states[-1]))
            states = torch.stack(states)
            ctx.save_for_backward(states)
            return states

        @staticmethod
        def backward(ctx, gradient):
            (states,) = ctx.saved_tensors
            adjoint, of_weight = gradient[-1], torch.zeros_like(weight)
            for k in range(len(states) - 2, -1, -1):
                with torch.enable_grad():
                    y = states[k].detach().requires_grad_()
                    found = torch.autograd.grad(rate(y), (y, weight), adjoint)
                adjoint = adjoint + 0.1 * found[0] + gradient[k]
                of_weight = of_weight + 0.1 * found[1]
            return adjoint, None, of_weight

    def loss(y):
        states = Adjoint.apply(y, 4, weight)
        return states[-1].square().sum() + states.abs().mean(), states

    compiled = treadle.compile(loss)
    with treadle.config.patch(leave_unprofitable=False):
        for _ in range(2):
            x, y = (torch.linspace(0, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_() for _ in range(2))
            (theirs, states), (ours, compiled_states) = loss(x), compiled(y)
            torch.testing.assert_close((ours, compiled_states), (theirs, states))
            expected = torch.autograd.grad(theirs + states.sum(), (x, weight))
            torch.testing.assert_close(torch.autograd.grad(ours + compiled_states.sum(), (y, weight)), expected)
    assert treadle.stats().graphs == 1 and not treadle.stats().eager_graphs


def test_a_class_that_is_defined_inside() -> None:
    """Torch numbers such classes; a compile of the training step defines some itself."""

    def program(x: torch.Tensor) -> torch.Tensor:
        steps = x.shape[0]

        class Damped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.tanh() / steps

            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                return gradient * (1 - x.tanh() ** 2) * 3

        return Damped.apply(x * 2).sum(1)

    compiled = treadle.compile(program)
    with treadle.config.patch(leave_unprofitable=False):
        for n in (6, 6, 9, 7, 12):
            x = torch.randn(n, 5)
            inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
            found, expected = compiled(inputs[0]), program(inputs[1])
            torch.testing.assert_close(found, expected)
            gradients = [
                torch.autograd.grad(r.square().sum(), i) for r, i in zip((found, expected), inputs, strict=True)
            ]
            torch.testing.assert_close(*gradients)
    assert (treadle.stats().graphs, treadle.stats().breaks) == (2, ())
