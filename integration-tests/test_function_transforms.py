"""Transforms of `torch.func` inside compiled functions: one graph, with values, structure and gradients as in eager."""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treadle

pytestmark = pytest.mark.filterwarnings("error:.*treadle")  # a graph that runs in eager

Program = Callable[[torch.Tensor, torch.Tensor], Any]
Pair = namedtuple("Pair", "first second")


def scalar(x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x) * 2).sum()


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def changed_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.add_(1)
    y[0] = 3
    return y


def counted(calls: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dim())
        return x * len(calls)

    return run


def with_counted(x, w):
    calls: list[int] = []
    return vmap(counted(calls), chunk_size=2)(x), calls


OUTSIDE_VMAP = vmap(scalar)
OUTSIDE_GRAD = grad(scalar)

PROGRAMS: dict[str, Program] = {
    "vmap": lambda x, w: vmap(scalar)(x),
    "vmap made outside": lambda x, w: OUTSIDE_VMAP(x) + OUTSIDE_GRAD(x).sum(),
    "in_dims and out_dims": lambda x, w: vmap(linear, in_dims=(0, None), out_dims=1)(x, w),
    "in_dims of a structure": lambda x, w: vmap(
        lambda d, s: {"o": d["a"] * s, "p": (d["b"],), "q": Pair(d["a"], d["b"].sum())},
        in_dims=({"a": 0, "b": None}, None),
    )({"a": x, "b": w}, 2.0),
    "ordered dict": lambda x, w: vmap(lambda d: OrderedDict(y=d["a"] + 1))(OrderedDict(a=x)),
    "result of torch": lambda x, w: vmap(lambda a: a.topk(2))(x),
    "keyword": lambda x, w: vmap(lambda a, *, k: a @ k, in_dims=0)(x, k=w),
    "negative dimension": lambda x, w: vmap(lambda a: a.cumsum(0), in_dims=-1, out_dims=-1)(x),
    "vmap in vmap": lambda x, w: vmap(lambda row: vmap(lambda c: row @ c, in_dims=1)(w))(x),
    "chunks": lambda x, w: vmap(scalar, chunk_size=2)(x),
    "different numbers": lambda x, w: vmap(lambda r: r + torch.rand_like(r), randomness="different")(x),
    "the same numbers": lambda x, w: vmap(lambda r: F.dropout(r, 0.5), randomness="same")(x),
    "in place": lambda x, w: vmap(changed_in_place)(x),
    "closure": lambda x, w: vmap(lambda r: (r @ w).sin())(x),
    "partial": lambda x, w: vmap(functools.partial(torch.add, alpha=2))(x, x + 1),
    "shapes inside": lambda x, w: vmap(lambda r: r.reshape(2, -1) * r.shape[0])(x),
    "side effects": with_counted,
    "grad": lambda x, w: grad(scalar)(x),
    "argnums": lambda x, w: grad(lambda a, b: linear(a, b).sum(), argnums=(0, 1))(x, w),
    "has_aux": lambda x, w: grad(lambda a: (scalar(a), (a * 2, {"b": a.sum()})), has_aux=True)(x),
    "grad_and_value": lambda x, w: grad_and_value(lambda p: linear(x, p["w"]).pow(2).sum())({"w": w}),
    "grad under no_grad": lambda x, w: _under_no_grad(x),
    "no_grad inside": lambda x, w: grad(lambda a: (a * _detached_mean(a)).sum())(x),
    "vmap of grad": lambda x, w: vmap(grad(lambda r, p: linear(r, p).sum()), in_dims=(0, None))(x, w),
    "grad of vmap": lambda x, w: grad(lambda p: vmap(lambda r: linear(r, p))(x).sum())(w),
    "grad of grad": lambda x, w: vmap(vmap(grad(grad(lambda s: s**3 * torch.sin(s)))))(x),
    "jacrev": lambda x, w: jacrev(linear, argnums=1)(x[0], w),
    "jacrev in chunks": lambda x, w: jacrev(torch.tanh, chunk_size=3)(x[:3]),
    "jacfwd": lambda x, w: jacfwd(linear)(x[0], w),
    "hessian": lambda x, w: hessian(lambda a: linear(a, w).pow(2).sum())(x[0]),
    "hessian of each row": lambda x, w: vmap(hessian(lambda a: linear(a, w).pow(3).sum()))(x),
    "jvp": lambda x, w: jvp(linear, (x, w), (x + 1, w * 2)),
    "jvp with aux": lambda x, w: jvp(lambda a: (a.sin(), a * 3), (x,), (x,), has_aux=True),
    "vjp": lambda x, w: _vjp(x, w),
    "jacobian by vjp": lambda x, w: vmap(vjp(torch.sin, w)[1])(torch.eye(16).reshape(16, 4, 4)),
    "linearize": lambda x, w: _linearize(x, w),
    "hessian-vector, forward over reverse": lambda x, w: jvp(grad(scalar), (x,), (x + 1,))[1],
    "hessian-vector, reverse over reverse": lambda x, w: vjp(grad(scalar), x)[1](x + 1)[0],
}


EAGER_IN_TRAINING = {"linearize"}  # eager folds what follows from the primals to constants, whose gradients end there


def _under_no_grad(x):
    with torch.no_grad():
        return grad(scalar)(x)


def _detached_mean(x):
    with torch.no_grad():
        return x.mean()


def _linearize(x, w):
    output, push = linearize(lambda p: linear(p["x"], p["w"]), {"x": x, "w": w})
    return output, push({"x": x, "w": w + 1}), push({"x": x * 2, "w": w})


def _vjp(x, w):
    output, pull_back, aux = vjp(lambda a, b: (linear(a, b), a + 1), x, w, has_aux=True)
    return output, pull_back(output + 1), aux


def assert_same(mine: Any, eagers: Any) -> None:
    """Equal structures; tensors agree in dtype, whether they require gradients, and value."""
    (found, spec), (expected, expected_spec) = pytree.tree_flatten(mine), pytree.tree_flatten(eagers)
    assert spec == expected_spec
    for a, b in zip(found, expected, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-4, atol=1e-5)


def gradients(result: Any, inputs: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """Gradients of a function of everything in the result that has some."""
    tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    loss = sum((t * torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape)).pow(2).sum() for t in tensors)
    return torch.autograd.grad(loss, inputs, allow_unused=True) if tensors else ()


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_one_graph_that_gives_what_eager_gives(name, requires_grad):
    is_whole = not (requires_grad and name in EAGER_IN_TRAINING)
    compiled = treadle.compile(PROGRAMS[name], fullgraph=is_whole)
    for rows in (3, 5, 6):
        x = torch.randn(rows, 4, requires_grad=requires_grad)
        w = torch.randn(4, 4, requires_grad=requires_grad)
        state = torch.get_rng_state()
        expected = PROGRAMS[name](x, w)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        found = compiled(x, w)
        assert torch.equal(torch.get_rng_state(), after)
        assert_same(found, expected)
        assert_same(gradients(found, [x, w]), gradients(expected, [x, w]))


@pytest.mark.parametrize(
    "name", ["vmap", "chunks", "in place", "vmap of grad", "jacrev", "jacfwd", "argnums", "vjp", "grad of vmap"]
)
def test_second_derivatives(name):
    """Gradients of gradients of a compiled function."""
    compiled = treadle.compile(PROGRAMS[name])
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def second(program):
        results = [t for t in pytree.tree_leaves(program(x, w)) if t.requires_grad]
        loss = sum(t.pow(3).sum() for t in results)
        first = torch.autograd.grad(loss, [x, w], create_graph=True, allow_unused=True)
        total = sum(g.pow(2).sum() for g in first if g is not None)
        return torch.autograd.grad(total, [x, w], allow_unused=True)

    assert_same(second(compiled), second(PROGRAMS[name]))


def test_one_graph_serves_all_batch_sizes():
    compiled = treadle.compile(lambda x, w: vmap(grad(lambda r: linear(r, w).sum()))(x), fullgraph=True)
    for rows in (3, 5, 7, 9, 12):
        compiled(torch.randn(rows, 4), torch.randn(4, 4))
    assert len(treadle.stats().recompiles) == 1


def _half_of_each(x, w):
    """The sizes of batched tensors are arguments inside of the function."""

    def halves(a, b):
        middle = a.shape[0] // 2
        return (a.sin().sum() * b[:middle]).sum() / a.shape[0]

    return vmap(grad(halves), (0, None))(x, w.flatten()), vmap(halves, (0, None))(x, w.flatten())


def _adapted(x, w):
    """A step of gradient descent on one half of each sample's rows, and the loss on the other."""

    def loss(p, rows):
        return linear(rows, p).tanh().pow(2).mean()

    def adapted(p, rows):
        middle = rows.shape[0] // 2
        return loss(p - 0.1 * grad(loss)(p, rows[:middle]), rows[middle:])

    return vmap(adapted, (None, 0))(w, x.unsqueeze(2) * w[0])


def check_one_dynamic_graph(program, all_shapes, requires_grad):
    """Results and gradients at all these shapes of the arguments are eager's, with one recompile."""
    compiled = treadle.compile(program, fullgraph=True)
    for shapes in all_shapes:
        inputs = [torch.randn(shape) for shape in shapes]
        mine = [t.clone().requires_grad_(requires_grad) for t in inputs]
        eagers = [t.clone().requires_grad_(requires_grad) for t in inputs]
        found, expected = compiled(*mine), program(*eagers)
        assert_same(found, expected)
        if requires_grad:
            assert_same(gradients(found, mine), gradients(expected, eagers))
    stats = treadle.stats()
    assert not stats.eager_graphs and len(stats.recompiles) == 1


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [_half_of_each, _adapted])
def test_sizes_of_batched_tensors(program, requires_grad):
    shapes = [((3, columns), (4, 4)) for columns in (6, 8, 12, 10, 9)]
    check_one_dynamic_graph(program, shapes, requires_grad)


def _laplacians(x, w):
    def derivative(f, a, v):
        return jvp(f, (a,), (v.expand_as(a),))[1]

    def energy(a):
        return linear(a, w).tanh().sum(1)

    basis = torch.eye(4)
    return sum(derivative(lambda a: derivative(energy, a, basis[i]), x, basis[i]) for i in range(4))  # noqa: B023


DIRECTIONS = {
    "views": lambda x, w: jvp(lambda a: (a.t() @ a[:, ::2]).sin(), (x,), (x + 1,)),
    "expanded tangents": _laplacians,
    "jacfwd": lambda x, w: jacfwd(lambda a: linear(a, w).sin().sum(0))(x),
    "hessian": lambda x, w: hessian(lambda a: linear(a, w).tanh().sum())(x),
    "hessian of each row": lambda x, w: vmap(hessian(lambda a: linear(a, w).pow(3).sum()))(x),
}


@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", DIRECTIONS)
def test_forward_derivatives_of_sizes_that_change(name, requires_grad):
    check_one_dynamic_graph(DIRECTIONS[name], [((rows, 4), (4, 4)) for rows in (3, 5, 7, 6)], requires_grad)


def test_options_that_change_between_calls():
    def program(x, in_dim, out_dim, argnums):
        mapped = vmap(lambda a: a.cumsum(0) * 2, in_dims=in_dim, out_dims=out_dim)(x)
        return mapped, grad(lambda a, b: (a @ b).sin().sum(), argnums=argnums)(x, x)

    compiled = treadle.compile(program)
    x = torch.randn(4, 4)
    for options in ((0, 0, 0), (1, 0, 1), (-1, 1, (1, 0)), ((0,), 1, (1,))):
        assert_same(compiled(x, *options), program(x, *options))


# ---- what breaks the graph, or raises


def _branches(x, w):
    return grad(lambda a: (a * 2 if a.sum() > 0 else a * 3).sum())(x)


def _reads_number(x, w):
    return grad(lambda a: a.sum() * a.detach().sum().item())(x)


def _writes_outside(x, w):
    seen = torch.zeros(4)

    def run(a):
        seen.add_(1)
        return a * seen

    return vmap(run)(x), seen


def _returns_pullback(x, w):
    output, pull_back = vjp(torch.sin, x)
    return output, pull_back


@pytest.mark.parametrize("program", [_branches, _reads_number, _writes_outside])
def test_what_no_graph_can_hold_runs_in_eager(program):
    x, w = torch.randn(3, 4), torch.randn(4, 4)
    compiled = treadle.compile(program)
    for sign in (1, -1):
        assert_same(compiled(sign * x, w), program(sign * x, w))


def test_a_pullback_leaves_the_function():
    x = torch.randn(3, 4)
    output, pull_back = treadle.compile(_returns_pullback)(x, x)
    torch.testing.assert_close(pull_back(output), torch.func.vjp(torch.sin, x)[1](output))


def test_a_tensor_that_leaves_its_function():
    def program(x):
        seen = []

        def run(a):
            seen.append(a + 1)
            return a * 2

        return vmap(run)(x), len(seen)

    x = torch.randn(3, 4)
    assert_same(treadle.compile(program)(x), program(x))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: vmap(lambda a: a.sum() if a.sum() > 0 else a.mean())(x),
        lambda x: vmap(lambda a: a.sum().item())(x),
        lambda x: vmap(lambda a: a + torch.rand(4))(x),
        lambda x: vmap(scalar, in_dims=3)(x),
        lambda x: vmap(scalar, randomness="any")(x),
        lambda x: vmap(lambda a: 3)(x),
        lambda x: grad(torch.sin)(x),
        lambda x: jvp(torch.sin, (x,), (x, x)),
        lambda x: vjp(torch.sin, x)[1]((x, x)),
        lambda x: vmap(lambda a: (_ for _ in ()).throw(ValueError("own")))(x),
    ],
)
def test_raises_what_eager_raises(program):
    x = torch.randn(3, 4)
    with pytest.raises(Exception) as eager:
        program(x)
    with pytest.raises(type(eager.value)) as mine:
        treadle.compile(program)(x)
    assert str(mine.value) == str(eager.value)


def test_batch_norm_in_training_raises_as_in_eager():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def program(x):
        return vmap(net)(x)

    x = torch.randn(3, 2, 4)
    with pytest.raises(RuntimeError) as eager:
        program(x)
    with pytest.raises(RuntimeError) as mine:
        treadle.compile(program)(x)
    assert str(mine.value) == str(eager.value)


# ---- compiled functions under transforms


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lambda x: vmap(f)(x),
        lambda f: lambda x: grad(lambda a: f(a).sum())(x),
        lambda f: lambda x: jvp(f, (x,), (x + 1,)),
        lambda f: lambda x: jacrev(f)(x),
        lambda f: lambda x: hessian(lambda a: f(a).sum())(x),
        lambda f: lambda x: _dual(f, x),
    ],
)
def test_a_compiled_function_under_a_transform(transform):
    def f(x):
        return torch.tanh(x) * 2

    x = torch.randn(3, 4)
    compiled = treadle.compile(f)
    for _ in range(2):
        assert_same(transform(compiled)(x), transform(f)(x))
        assert_same(compiled(x), f(x))
    assert_same(treadle.compile(lambda x: transform(compiled)(x))(x), transform(f)(x))


def _dual(f, x):
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, x + 1))))


# ---- programs


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


def test_gradients_of_each_sample():
    net = ConvNet()
    params = {name: p.detach() for name, p in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(params, buffers, x, y):
        return F.cross_entropy(functional_call(net, (params, buffers), (x.unsqueeze(0),)), y.unsqueeze(0))

    def program(params, x, y):
        return vmap(grad(loss), in_dims=(None, None, 0, 0))(params, buffers, x, y)

    compiled = treadle.compile(program, fullgraph=True)
    for n in (4, 6, 7):
        x, y = torch.randn(n, 1, 8, 8), torch.randint(3, (n,))
        assert_same(compiled(params, x, y), program(params, x, y))


def test_gradients_of_each_sample_with_batch_norm_in_evaluation():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(3)
    ).eval()
    net(torch.randn(1, 1, 6, 6))
    params, buffers = {n: p.detach() for n, p in net.named_parameters()}, dict(net.named_buffers())

    def loss(params, buffers, x, y):
        return F.cross_entropy(functional_call(net, (params, buffers), (x.unsqueeze(0),)), y.unsqueeze(0))

    def program(params, x, y):
        return vmap(grad(loss), in_dims=(None, None, 0, 0))(params, buffers, x, y)

    x, y = torch.randn(4, 1, 6, 6), torch.randint(3, (4,))
    assert_same(treadle.compile(program, fullgraph=True)(params, x, y), program(params, x, y))


def test_gradients_of_each_sample_of_bert():
    pytest.importorskip("torchvision_schemas").define_missing_schemas()
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    net = BertModel(config).eval()
    params = {name: p.detach() for name, p in net.named_parameters()}

    def loss(params, ids):
        return functional_call(net, params, (ids.unsqueeze(0),)).last_hidden_state.pow(2).mean()

    def program(params, ids):
        return vmap(grad(loss), in_dims=(None, 0))(params, ids)

    ids = torch.randint(50, (3, 6))
    assert_same(treadle.compile(program, fullgraph=True)(params, ids), program(params, ids))


def test_ensemble():
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(3)]
    params, buffers = stack_module_state(models)  # type: ignore[arg-type]
    base = copy.deepcopy(models[0]).to("meta")

    def program(params, x):
        return vmap(lambda p, b, a: functional_call(base, (p, b), (a,)), in_dims=(0, 0, None))(params, buffers, x)

    compiled = treadle.compile(program, fullgraph=True)
    for n in (3, 5, 6):
        x = torch.randn(n, 4)
        found, expected = compiled(params, x), program(params, x)
        assert_same(found, expected)
        wanted = list(params.values())
        assert_same(torch.autograd.grad(found.sum(), wanted), torch.autograd.grad(expected.sum(), wanted))


def test_neural_tangent_kernel():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    params = {name: p.detach() for name, p in net.named_parameters()}

    def single(params, x):
        return functional_call(net, params, (x.unsqueeze(0),)).squeeze(0)

    def kernel(params, x1, x2):
        j1 = vmap(jacrev(single), (None, 0))(params, x1)
        j2 = vmap(jacrev(single), (None, 0))(params, x2)
        pairs = zip([j.flatten(2) for j in j1.values()], [j.flatten(2) for j in j2.values()], strict=True)
        return torch.stack([torch.einsum("Naf,Mbf->NMab", a, b) for a, b in pairs]).sum(0)

    compiled = treadle.compile(kernel, fullgraph=True)
    for n in (3, 5):
        x1, x2 = torch.randn(n, 4), torch.randn(n + 1, 4)
        assert_same(compiled(params, x1, x2), kernel(params, x1, x2))


def test_maml():
    """The inner step is differentiated through."""
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def task_loss(params, x1, y1, x2, y2):
        def loss(params, x, y):
            return F.mse_loss(functional_call(net, params, (x,)), y)

        inner = grad(loss)(params, x1, y1)
        adapted = {name: params[name] - 0.1 * inner[name] for name in params}
        return loss(adapted, x2, y2)

    def program(params, *data):
        return vmap(task_loss, in_dims=(None, 0, 0, 0, 0))(params, *data).mean()

    params = {name: p.detach().requires_grad_() for name, p in net.named_parameters()}
    compiled = treadle.compile(program, fullgraph=True)
    for tasks in (3, 4, 6):
        data = [torch.randn(tasks, 5, 1) for _ in range(4)]
        found, expected = compiled(params, *data), program(params, *data)
        assert_same(found, expected)
        wanted = list(params.values())
        assert_same(torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted))


def test_physics_informed_network():
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def u(t, x):
        return net(torch.stack([t, x])).squeeze(-1)

    def residual(t, x):
        u_t = grad(u, argnums=0)(t, x)
        u_xx = grad(grad(u, argnums=1), argnums=1)(t, x)
        return u_t - 0.1 * u_xx

    def program(points):
        return vmap(residual)(points[:, 0], points[:, 1]).pow(2).mean()

    compiled = treadle.compile(program, fullgraph=True)
    for n in (4, 6, 7):
        points = torch.rand(n, 2)
        found, expected = compiled(points), program(points)
        assert_same(found, expected)
        wanted = list(net.parameters())[:3]  # the last bias has no gradient
        assert_same(torch.autograd.grad(found, wanted), torch.autograd.grad(expected, wanted))


def test_weights_that_change_between_calls():
    net = nn.Linear(4, 2)

    def program(x):
        return vmap(grad(lambda r: net(r).pow(2).sum()))(x)

    compiled = treadle.compile(program, fullgraph=True)
    x = torch.randn(3, 4)
    for _ in range(3):
        assert_same(compiled(x), program(x))
        with torch.no_grad():
            net.weight.add_(0.5)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: grad(lambda a: checkpoint(lambda b: b.sin().sum(), a, use_reentrant=False))(x),
        lambda x: vmap(Cube.apply)(x),
        lambda x: grad(lambda a: Cube.apply(a).sum())(x),
    ],
)
def test_what_transforms_have_rules_of_their_own_for(program):
    x = torch.randn(3, 4)

    def outcome(function):
        try:
            return function(x)
        except RuntimeError as error:
            return str(error)

    assert_same(outcome(treadle.compile(program)), outcome(program))


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5 * ctx.saved_tensors[0]


@pytest.mark.parametrize("batched", [False, True])
def test_a_backward_pass_that_is_mapped_over(batched):
    def f(x):
        return torch.tanh(x) * x.sum()

    def jacobian(function, x):
        y = function(x)
        basis = torch.eye(12).reshape(12, 3, 4)
        if batched:
            return torch.autograd.grad(y, x, basis, is_grads_batched=True)[0]
        return vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(basis)

    x = torch.randn(3, 4, requires_grad=True)
    compiled = treadle.compile(f)
    assert_same(jacobian(compiled, x), jacobian(f, x))


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_functions_of_autograd_functional(vectorize, strategy):
    w = torch.randn(4, 4)

    def program(x):
        AF = torch.autograd.functional
        jacobian = AF.jacobian(lambda a: torch.tanh(a @ w), x, vectorize=vectorize, strategy=strategy)
        hessian = AF.hessian(lambda a: torch.tanh(a @ w).pow(2).sum(), x, vectorize=vectorize)
        pairs = [
            f(lambda a: torch.tanh(a @ w).sum(), x, *rest)
            for f, *rest in ((AF.vjp,), (AF.hvp, x), (AF.vhp, x), (AF.jvp, x))
        ]
        return jacobian, hessian, pairs

    x = torch.randn(3, 4)
    if strategy == "forward-mode" and not vectorize:
        with pytest.raises(NotImplementedError):
            treadle.compile(program)(x)
        return
    assert_same(treadle.compile(program)(x), program(x))


def test_a_function_that_changes_its_argument():
    """The transform passes the change on to the outside tensor: Python runs the call."""

    def program(x):
        y = x * 2
        return vmap(lambda a: a.add_(1))(y), y

    x = torch.randn(3, 4)
    assert_same(treadle.compile(program)(x), program(x))
