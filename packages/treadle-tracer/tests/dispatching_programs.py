"""Subclasses of torch.Tensor with a `__torch_dispatch__`, and programs that use tensors of theirs."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

F = torch.nn.functional
aten = torch.ops.aten
ASKED: list[object] = []


class Pair(torch.Tensor):
    """Computes with two tensors at once."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            first.shape,
            strides=first.stride(),
            storage_offset=first.storage_offset(),
            dtype=first.dtype,
            layout=first.layout,
            device=first.device,
            requires_grad=first.requires_grad,
        )

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        ASKED.append((str(func), [kind.__name__ for kind in types], len(args), sorted(kwargs or {})))
        both = []
        for name in ("first", "second"):
            given, named = pytree.tree_map_only(cls, lambda pair, name=name: getattr(pair, name), (args, kwargs or {}))
            both.append(func(*given, **named))
        flat, spec = pytree.tree_flatten(both[0])
        others = pytree.tree_leaves(both[1])
        made = [cls(a, b) if isinstance(a, torch.Tensor) else a for a, b in zip(flat, others, strict=True)]
        return return_and_correct_aliasing(func, args, kwargs or {}, pytree.tree_unflatten(made, spec))


class Asking(Pair):
    """With the `__torch_function__` of torch.Tensor."""

    __torch_function__ = classmethod(torch.Tensor.__torch_function__.__func__)


class Below(Pair):
    pass


class Quantised(torch.Tensor):
    """Weights as 8-bit numbers and a scale for each row. What its table has not is an error."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    table = {}  # noqa: RUF012

    @staticmethod
    def __new__(cls, numbers, scale, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=dtype, device=numbers.device)

    def __init__(self, numbers, scale, dtype):
        self.numbers, self.scale = numbers, scale

    def dequantised(self):
        return self.numbers.to(self.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func not in cls.table:
            raise NotImplementedError(f"{func} of {cls.__name__}")
        return cls.table[func](func, args, kwargs or {})


def carries_out(*operators):
    def enter(function):
        Quantised.table.update(dict.fromkeys(operators, function))
        return function

    return enter


@carries_out(aten.t.default, aten.detach.default, aten.clone.default)
def _part_by_part(func, args, kwargs):
    (weight,) = args
    return Quantised(func(weight.numbers), func(weight.scale), weight.dtype)


@carries_out(aten.mm.default)
def _mm(func, args, kwargs):
    return func(args[0], args[1].dequantised())


@carries_out(aten.addmm.default, aten.linear.default)
def _with_bias(func, args, kwargs):
    plain = [arg.dequantised() if isinstance(arg, Quantised) else arg for arg in args]
    return func(*plain)


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weight = torch.randint(-50, 50, (5, 4), dtype=torch.int8)
        self.weight = torch.nn.Parameter(Quantised(weight, torch.rand(5, 1) / 50, torch.float32), requires_grad=False)
        self.bias = torch.nn.Parameter(torch.rand(5))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Linear(), torch.nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


def linear(x, w):
    return F.linear(x * 2, w).relu()


def made_inside(x, w):
    made = Pair(x, x * 2)
    return made + w, made.first


def operators(x, w):
    return 1 - w, 2 / (w.abs() + 1), w**2, -w, w @ x, x @ w, x.mul(w), x + w, torch.where(w > 0, w, x), w == w


def metadata(x, w):
    return (
        (w.shape, w.dtype, w.device, w.ndim, w.requires_grad, w.size(0), w.dim(), w.numel(), w.stride(1), len(w)),
        (w.is_contiguous(), w.is_floating_point(), w.element_size(), w.T.shape, isinstance(w, Pair), type(w).__name__),
        x + w.shape[0],
    )


def functions(x, w):
    parts = w[None]
    return (
        F.layer_norm(w, (4,)),
        F.softmax(w, -1),
        F.gelu(w),
        w.mean(1, keepdim=True),
        F.scaled_dot_product_attention(parts, parts, parts),
        torch.matmul(x.expand(2, 4, 4), w),
        F.conv1d(parts, w[:, :, None]),
    )


def views_inside(x, w):
    return w.t().contiguous().view(2, 8)[0, 1:] + 1, (w.mT * x)[:, 1:3].relu()


def several_results(x, w):
    first, second = (w * x).split([1, 3])
    return first + 1, second * 2, [row * 2 for row in w], torch.topk(w, 2).values + 1, w.max(0)


def lists(x, w):
    return torch.cat([w, w * 2]), torch.stack([w, w], 1) + 1


def nested_in_place(x, w):
    outer = Pair(Pair(x * 1, w.first * 1), w.second * 2)
    outer.mul_(3)
    return outer.first.first, outer.second


def nested(x, w):
    outer = Pair(w, w * 2)
    return (outer + x).first, (outer * 2).second.second


def two_classes(x, w):
    return w + Below(x, x + 1)


def copies(x, w):
    return w.to(torch.float64), w.half().float(), w.clone(), w.detach() + 1, torch.zeros_like(w), w.new_zeros(3)


def detached(x, w):
    y = w.detach()
    y.add_(1)
    return y, w.second


def detached_inside(x, w):
    y = w * 2
    z = y.detach()
    return y, z + 1


def in_place_inside(x, w):
    y = w * 2
    y.add_(x).mul_(2)
    return y


def attributes(x, w):
    w.note = 3
    w.first = w.first + x
    return w * 2, w.note


def numbers(x, w):
    return x + w.first.sum(), w.sum().item()


def decided_on(x, w):
    return x + 1 if w.sum() > 0 else x - 1


def handled(x, w):
    try:
        return LINEAR.weight + 1
    except NotImplementedError as error:
        return x, str(error)


def quantised(x, w):
    return LINEAR(x), isinstance(LINEAR.weight, torch.nn.Parameter)


def network(x, w):
    return NETWORK(x), [type(p).__name__ for p in NETWORK.parameters()]


def random_numbers(x, w):
    return F.dropout(w, 0.5), torch.rand_like(w), w.bernoulli(0.3)


def key_of_a_dict(x, w):
    return {w: x + 1}[w]


def views_given_back(x, w):
    y = w * x
    return y.t(), y[0]


def writes_outside(x, w):
    w.add_(1)
    x.add_(1)
    w.mul_(x)
    return w.first + 1


def items_written(x, w):
    w[0] = 1.0
    return w + x


def plain_one_written(x, w):
    x.add_(w)
    return x * 2


def gradients(x, w):
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return (leaf * 2 + w).first.requires_grad


WHOLE = (
    linear,
    made_inside,
    operators,
    metadata,
    functions,
    views_inside,
    several_results,
    lists,
    nested,
    nested_in_place,
    two_classes,
    copies,
    detached_inside,
    in_place_inside,
    attributes,
    numbers,
    handled,
    quantised,
    network,
    key_of_a_dict,
    random_numbers,
)
BROKEN = (detached, decided_on, views_given_back, writes_outside, items_written, plain_one_written, gradients)

torch.manual_seed(0)
LINEAR, NETWORK = Linear(), Network()
