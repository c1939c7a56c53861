"""PyTorch: constructors, state, modules, hooks, random numbers, distributions, sparse, packed sequences."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, rnn


def float_tensor_constructor(x):
    return x + torch.FloatTensor([1.0, 2.0, 3.0]) + torch.LongTensor([1, 2, 3])


def float_tensor_of_sizes(x):
    return x + torch.FloatTensor(2, 3).zero_()


def tensor_new(x):
    return x.new([1.0, 2.0, 3.0]) + x.new_zeros(3) + x.new_tensor([1.0, 2.0, 3.0])


def variable_constructor(x):
    return torch.autograd.Variable(x) * 2


def parameter_constructor(x):
    return x * nn.Parameter(torch.ones(3))


def tensor_constructor(x):
    return torch.tensor([[1.0, 2.0, 3.0]]) + torch.as_tensor(x) + torch.Tensor([1, 2, 3])


def tensor_from_list_of_items(x):
    return torch.tensor([x.sum().item(), x.max().item()])


def tensor_item_arithmetic(x):
    return x * x.sum().item()


def tensor_tolist(x):
    return torch.tensor(x.long()[0].tolist()) * 2


def int_of_tensor(x):
    return x + int(x.sum())


def len_and_iteration(x):
    return sum(row * 2 for row in x) + len(x)


def tensor_attributes(x):
    y = x.mT.real
    return y.T * x.ndim + x.itemsize + x.nbytes + x.is_contiguous() + x.requires_grad + x.element_size()


def tensor_data_read(x):
    return x.data * 2


def tensor_data_write(x):
    y = x.clone()
    y.data = x + 5
    return y * 2


def set_attribute_on_tensor(x):
    y = x + 1
    y.tag = 3
    return y * y.tag


LSTM = nn.LSTM(3, 4, batch_first=True)
GRU = nn.GRU(3, 4)


def lstm(x):
    output, (hidden, cell) = LSTM(x[None])
    return output, hidden, cell


def gru(x):
    return GRU(x[None])


def packed_lstm(x):
    packed = rnn.pack_padded_sequence(x[None].repeat(2, 1, 1), [2, 1], batch_first=True)
    output, _ = LSTM(packed)
    return rnn.pad_packed_sequence(output, batch_first=True)


def packed_sequence_constructor(x):
    packed = rnn.PackedSequence(x, torch.tensor([1, 1]))
    return packed.data + 1, packed.batch_sizes


def pad_sequence(x):
    return rnn.pad_sequence([x, x[:1]], batch_first=True)


def pack_sequence(x):
    return rnn.pack_sequence([x, x[:1]]).data


def module_made_inside(x):
    torch.manual_seed(0)
    return nn.Linear(3, 2)(x)


def sequential_made_inside(x):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))(x)


LAZY = nn.LazyLinear(2)


def lazy_module(x):
    torch.manual_seed(0)
    return LAZY(x)


HOOKED = nn.Linear(3, 3)
nn.init.ones_(HOOKED.weight)
nn.init.zeros_(HOOKED.bias)
HOOKED.register_forward_hook(lambda module, args, output: output * 2)
HOOKED.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def module_hooks_outside(x):
    return HOOKED(x)


def module_hook_inside(x):
    layer = nn.ReLU()
    handle = layer.register_forward_hook(lambda module, args, output: output + 3)
    result = layer(x)
    handle.remove()
    return result + layer(x)


def tensor_hook_inside(x):
    w = torch.ones(3, requires_grad=True)
    y = w * x.sum()
    y.register_hook(lambda gradient: gradient * 2)
    (gradient,) = torch.autograd.grad(y.sum(), w)
    return gradient


class Symmetric(nn.Module):
    def forward(self, value):
        return value + 1


PARAMETRIZED = nn.Linear(3, 3, bias=False)
nn.init.ones_(PARAMETRIZED.weight)
parametrize.register_parametrization(PARAMETRIZED, "weight", Symmetric())
torch.manual_seed(0)
SPECTRAL = parametrizations.weight_norm(nn.Linear(3, 3))


def parametrization(x):
    return PARAMETRIZED(x)


def weight_norm(x):
    return SPECTRAL(x)


def parametrization_cached(x):
    with parametrize.cached():
        return PARAMETRIZED(x) + PARAMETRIZED.weight.sum()


def state_dict_read(x):
    return x * len(HOOKED.state_dict()) + HOOKED.state_dict()["weight"].sum()


def named_parameters(x):
    return sum(p.sum() for name, p in HOOKED.named_parameters() if "weight" in name) + x


def module_apply_and_train(x):
    layer = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
    layer.eval()
    return layer(x) + layer.training


def parameter_list_and_dict(x):
    weights = nn.ParameterList([nn.Parameter(torch.ones(3))])
    named = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
    return x * weights[0] + named["a"]


def functional_call(x):
    return torch.func.functional_call(HOOKED, {"weight": torch.ones(3, 3), "bias": torch.zeros(3)}, (x,))


def no_grad_and_enable_grad(x):
    with torch.no_grad():
        y = x + 1
    with torch.enable_grad():
        z = y * 2
    return z * torch.is_grad_enabled()


def inference_mode(x):
    with torch.inference_mode():
        y = x + 1
    return y.sum()


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.T


def sdpa_kernel(x):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])


def profiler_record(x):
    with torch.profiler.record_function("part"):
        return x + 1


def default_dtype(x):
    torch.set_default_dtype(torch.float64)
    y = torch.ones(3)
    torch.set_default_dtype(torch.float32)
    return x + y


def device_context(x):
    with torch.device("cpu"):
        return x + torch.ones(3)


def manual_seed(x):
    torch.manual_seed(3)
    return x + torch.rand(3)


def rng_state_functions(x):
    state = torch.get_rng_state()
    first = torch.rand(3)
    torch.set_rng_state(state)
    return x + first - torch.rand(3)


def fork_rng(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        y = torch.rand(3)
    return x + y


GENERATOR = torch.Generator()


def generator_outside(x):
    return x + torch.rand(3, generator=GENERATOR)


def generator_inside(x):
    generator = torch.Generator()
    generator.manual_seed(4)
    return x + torch.rand(3, generator=generator)


def initial_seed(x):
    return x * (torch.initial_seed() > -1)


def dropout_functional(x):
    return torch.nn.functional.dropout(x, 0.5)


def distribution_normal(x):
    normal = torch.distributions.Normal(x, 1.0)
    return normal.log_prob(x + 1) + normal.rsample()


def distribution_categorical(x):
    categorical = torch.distributions.Categorical(logits=x)
    return categorical.entropy() + categorical.log_prob(torch.tensor([0, 1]))


def distribution_kl(x):
    first, second = torch.distributions.Normal(x, 1.0), torch.distributions.Normal(0.0, 2.0)
    return torch.distributions.kl_divergence(first, second)


def distribution_transformed(x):
    base = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    transform = torch.distributions.transforms.AffineTransform(1.0, 2.0)
    return torch.distributions.TransformedDistribution(base, [transform]).log_prob(x)


def distribution_multivariate(x):
    return torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3)).log_prob(x)


def distribution_independent_beta(x):
    beta = torch.distributions.Beta(x + 1, x + 2)
    return torch.distributions.Independent(beta, 1).log_prob(torch.full((2, 3), 0.4))


def sparse_matrix(x):
    sparse = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
    return torch.sparse.mm(sparse, x)


def sparse_conversion(x):
    return x.to_sparse().to_dense() * 2


def complex_numbers(x):
    z = torch.complex(x, x)
    return z.conj() * 1, torch.view_as_real(z * 2), z.abs()


def as_strided(x):
    return x.as_strided((3, 2), (1, 3)) + 1


def output_is_input(x):
    return x, x.view(3, 2)


def outputs_alias(x):
    y = x + 1
    return y, y[0], y


def inplace_on_input(x):
    x.add_(1)
    x[0] = 5
    return x * 2


def nonzero(x):
    return torch.nonzero(x > 1)


def boolean_mask(x):
    return x[x > 1] * 2


def unique(x):
    return torch.unique(x.long())


def where_single(x):
    return x[torch.where(x > 1)]


def masked_assignment(x):
    y = x.clone()
    y[y > 1] = 0
    return y


def branch_on_data(x):
    if x.sum() > 1:
        return x + 1
    return x - 1


def torch_cond(x):
    return torch.cond(x.sum() > 1, lambda y: y + 1, lambda y: y - 1, (x,))


def vmap(x):
    return torch.vmap(lambda row: row * row.sum())(x)


def grad_transform(x):
    return torch.func.grad(lambda y: (y**2).sum())(x)


def jacrev(x):
    return torch.func.jacrev(torch.sin)(x[0])


def autograd_grad(x):
    w = torch.ones(3, requires_grad=True)
    return torch.autograd.grad((x * w).sum(), w)[0]


def backward_inside(x):
    w = torch.ones(3, requires_grad=True)
    (x * w).sum().backward()
    return w.grad


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def autograd_function(x):
    return Double.apply(x)


def checkpoint(x):
    return torch.utils.checkpoint.checkpoint(lambda y: (y * 2).relu(), x, use_reentrant=False)


def optimizer_step(x):
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    (x * w).sum().backward()
    optimizer.step()
    return w.detach()


class Meters(torch.Tensor):
    pass


def tensor_subclass(x):
    return x.as_subclass(Meters) + 1


class Tagged:
    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        return function(*[a.value if isinstance(a, Tagged) else a for a in args], **(kwargs or {})) + 1


def torch_function_protocol(x):
    return torch.add(Tagged(x), 2)


class AddsOne(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result + 1 if function is torch.mul else result


def torch_function_mode(x):
    with AddsOne():
        return torch.mul(x, 2)


def is_compiling(x):
    return x + 1 if isinstance(torch.compiler.is_compiling(), bool) else x


def torch_queries(x):
    return x * torch.is_tensor(x) + torch.is_floating_point(x) + torch.cuda.is_available() + torch.finfo(x.dtype).bits


def pytree(x):
    leaves, spec = torch.utils._pytree.tree_flatten({"a": x, "b": [x + 1]})
    return torch.utils._pytree.tree_unflatten([leaf * 2 for leaf in leaves], spec)


def torch_save(x):
    import io

    stream = io.BytesIO()
    torch.save({"a": 1}, stream)
    return x * (len(stream.getvalue()) > 0)


def einsum(x):
    return torch.einsum("ij,kj->ik", x, x)


def interpolate_and_unfold(x):
    return torch.nn.functional.interpolate(x[None, None], scale_factor=2) + 1, x.unfold(1, 2, 1)


def quantiles_and_histogram(x):
    return torch.quantile(x, 0.5), torch.histc(x, 3), torch.bincount(x.long().flatten())
