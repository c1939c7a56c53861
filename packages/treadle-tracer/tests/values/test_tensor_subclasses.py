"""Tensors of subclasses of torch.Tensor: made inside, given from outside, with `__torch_function__` of their own and without."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

F = torch.nn.functional
ASKED: list[object] = []


class Plain(torch.Tensor):
    pass


class Asking(torch.Tensor):
    """Notes what PyTorch asks it for."""

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        ASKED.append((cls.__name__, function.__name__, [kind.__name__ for kind in kinds], len(args), kwargs))
        return super().__torch_function__(function, kinds, args, kwargs)


class Below(Asking):
    pass


class Tagged(torch.Tensor):
    """Hands its tag on."""

    @staticmethod
    def __new__(cls, data, tag):
        return torch.Tensor.as_subclass(data, cls)

    def __init__(self, data, tag):
        self.tag = tag

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        result = super().__torch_function__(function, kinds, args, kwargs)
        if isinstance(result, cls) and not hasattr(result, "tag"):
            result.tag = next(arg.tag for arg in args if isinstance(arg, cls))
        return result

    def doubled(self):
        return self * 2

    @property
    def length_of_tag(self):
        return len(self.tag)


class Unwrapping(torch.Tensor):
    """Computes with plain tensors and gives plain tensors."""

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        plain = [arg.as_subclass(torch.Tensor) if isinstance(arg, cls) else arg for arg in args]
        with torch._C.DisableTorchFunctionSubclass():
            return function(*plain, **(kwargs or {}))


class Replacing(torch.Tensor):
    """Has functions of its own for some of PyTorch's."""

    own = {}  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function in cls.own:
            return cls.own[function](*args, **(kwargs or {}))
        return super().__torch_function__(function, kinds, args, kwargs)


Replacing.own[torch.add] = torch.mul
Replacing.own[torch.Tensor.shape.__get__] = lambda x: "a shape"
Replacing.own[torch.Tensor.sum] = lambda x: 7


class Comparing(torch.Tensor):
    """Compares the function with those that it knows."""

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        ndim = torch.Tensor.ndim.__get__
        if function == ndim and ndim == function and not function != ndim and type(function) is type(ndim):
            return 10
        if function in (torch.Tensor.shape.__get__,) and function is not torch.Tensor.shape.__get__:
            return "a shape"
        return super().__torch_function__(function, kinds, args, kwargs)


class Unasked(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        raise ValueError(function.__name__)


class Owner:
    def __init__(self, tensor):
        self.tensor = tensor


def of(cls, *values):
    return torch.tensor(values).as_subclass(cls)


OUTSIDE = of(Asking, 1.0, -2.0)
TAGGED = Tagged(torch.tensor([2.0, 3.0]), "outside")
BUFFER = torch.nn.Module()
BUFFER.register_buffer("kept", of(Plain, 1.0, 2.0))
OWNER = Owner(of(Plain, 3.0, 4.0))
LEAF = of(Plain, 3.0, 4.0).requires_grad_()


def operators(x):
    y = x.as_subclass(Asking)
    return (
        y + 1,
        1 - y,
        y * y,
        y / 2,
        2 / y,
        y**2,
        2**y,
        -y,
        abs(y),
        y // 2,
        y % 2,
        y @ y,
        y > 0,
        y == y,
        y[0],
        y[:1],
        ~(y > 0),
    )


def methods(x):
    y = x.as_subclass(Asking)
    return (
        y.add(1),
        y.sum(),
        y.sum(dim=0, keepdim=True),
        y.max(0),
        y.split(1),
        y.chunk(2),
        y.norm(),
        y.view(2, 1).T,
        y.to(torch.float64),
    )


def functions(x):
    y = x.as_subclass(Asking)
    return (
        torch.add(y, 1),
        torch.cat([x, y]),
        F.gelu(y),
        F.layer_norm(y, (2,)),
        F.mse_loss(y, x),
        torch.where(x > 0, y, x),
        torch.stack((y, x)),
    )


def attributes(x):
    y = x.as_subclass(Asking)
    return (
        y.shape,
        y.dtype,
        y.ndim,
        y.device.type,
        y.requires_grad,
        y.T,
        y.size(),
        y.size(0),
        y.dim(),
        len(y),
        y.is_floating_point(),
    )


def beside_plain_tensors(x):
    y = x.as_subclass(Asking)
    return x + y, y + x, x.mul(y), x[y > 0], x * OUTSIDE, OUTSIDE - x


def one_class_below_another(x):
    a, b = x.as_subclass(Asking), x.as_subclass(Below)
    return a + b, b + a, torch.add(a, b), torch.cat([a, b])


def in_place(x):
    y = x.clone().as_subclass(Asking)
    before = y
    y += 1
    y.mul_(2)
    y[0] = 5.0
    F.relu(y, inplace=True)
    return y, y is before, y.zero_() is y


def writes_of_the_same_memory(x):
    plain = x.clone()
    y = plain.as_subclass(Plain)
    y.add_(1)
    plain.mul_(3)
    again = y.as_subclass(torch.Tensor)
    again.sub_(1)
    return y, plain, again, again is plain


def items_of_a_plain_tensor(x):
    target = torch.zeros(2)
    target[:] = x.as_subclass(Plain)
    return target, type(target).__name__


def tags(x):
    y = Tagged(x, "made")
    z = y.doubled() + 1
    return z, z.tag, z.length_of_tag, TAGGED * 2, (TAGGED + y).tag


def unwrapped(x):
    y = x.as_subclass(Unwrapping)
    return torch.nn.functional.linear(y, torch.ones(2, 2)), y + 1, y.sum()


def replaced(x):
    y = x.as_subclass(Replacing)
    return torch.add(y, 3), y.shape, y.sum(), y.size(), y + 3


def compared(x):
    y = x.as_subclass(Comparing)
    return x + y.ndim, y.shape, y.dtype


def without_override(x):
    y = x.clone().as_subclass(Unasked)
    return y + 1, y.shape, y, y.add_(1) is y


def class_and_identity(x):
    y = x.as_subclass(Plain)
    z = y.as_subclass(Plain)
    return (
        type(y) is Plain,
        isinstance(y, torch.Tensor),
        y is z,
        y is y,
        type(y[0]).__name__,
        y.as_subclass(torch.Tensor),
    )


def conversions(x):
    y = x.as_subclass(Plain)
    return [item * 2 for item in y], [float(item) for item in (y * 0).detach()]


def given_back(x):
    return OUTSIDE, OUTSIDE + x


def of_a_module(x):
    return x * BUFFER.kept, BUFFER.kept


def of_an_object(x):
    OWNER.tensor = OWNER.tensor + x
    OWNER.tensor.note = 5
    return OWNER.tensor, OWNER.tensor.note


def exceptions(x):
    y = x.as_subclass(Refusing)
    try:
        return y + 1
    except ValueError as error:
        return str(error), x + 1


def default_called_directly(x):
    return Plain.__torch_function__(torch.add, (Plain,), (x, 1)), Plain.__torch_function__(torch.add, (Below,), (x, 1))


def gradients_of_a_loss(x):
    loss = (x.as_subclass(Plain) * LEAF).pow(2).sum()
    loss.backward()
    gradient = LEAF.grad.clone()
    LEAF.grad = None
    return gradient


def a_leaf_without_grad_mode(x):
    with torch.no_grad():
        y = LEAF * x
    return y.requires_grad, (LEAF * x).requires_grad, LEAF.requires_grad


WHOLE = (
    operators,
    methods,
    functions,
    attributes,
    beside_plain_tensors,
    one_class_below_another,
    in_place,
    writes_of_the_same_memory,
    items_of_a_plain_tensor,
    tags,
    unwrapped,
    replaced,
    compared,
    without_override,
    class_and_identity,
    conversions,
    given_back,
    of_a_module,
    exceptions,
    default_called_directly,
    a_leaf_without_grad_mode,
)


def is_leaf_and_history(x):
    return LEAF.is_leaf, LEAF.grad, (LEAF * x).grad_fn is None, x.as_subclass(Plain)._is_view()


def decided_on(x):
    y = x.as_subclass(Plain)
    return y + 1 if (y > 0).all() else y - 1


def hashed(x):
    return {OUTSIDE: x + 1}[OUTSIDE]


def _facts(value):
    if isinstance(value, torch.Tensor):
        plain = torch.Tensor.as_subclass(value, torch.Tensor)
        return (
            type(value).__name__,
            plain.tolist(),
            plain.dtype,
            plain.requires_grad,
            {k: _facts(v) for k, v in vars(value).items()},
        )
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_facts(item) for item in value]
    return value


def _outcome(function, x):
    ASKED.clear()
    OWNER.tensor = of(Plain, 3.0, 4.0)
    result = _facts(function(x))
    return result, list(ASKED), x.tolist()


@pytest.mark.parametrize("requires_grad", (False, True), ids=("plain", "gradients"))
@pytest.mark.parametrize(
    "program",
    (*WHOLE, of_an_object, gradients_of_a_loss, is_leaf_and_history, decided_on, hashed),
    ids=lambda program: program.__name__,
)
def test_programs(program, requires_grad):
    run, said = compiled(program)
    for start in (1.0, 2.0, 1.0):
        x = torch.tensor([start, -start])
        assert _outcome(run, x.clone().requires_grad_(requires_grad)) == _outcome(
            program, x.clone().requires_grad_(requires_grad)
        )
    assert program not in WHOLE or not (said.breaks or said.skips), (said.codes(), said.skips)


@pytest.mark.parametrize("cls", (Plain, Asking, Unwrapping, Unasked))
def test_gradients_flow(cls):
    def program(x, w):
        return (torch.nn.functional.linear(x.as_subclass(cls), w).relu() * x).sum()

    run, said = compiled(program)
    for _ in range(2):
        gradients = []
        for function in (program, run):
            torch.manual_seed(0)
            x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
            result = function(x, w)
            result.as_subclass(torch.Tensor).backward()
            gradients.append((type(result).__name__, x.grad, w.grad))
        for expected, found in zip(*gradients, strict=True):
            assert expected == found if isinstance(expected, str) else torch.equal(expected, found)
    assert not said.breaks


def test_an_argument_and_a_plain_tensor_of_its_memory():
    def program(plain, tensor):
        plain.add_(1)
        tensor.mul_(2)
        return plain + 0, tensor + 0

    run, _ = compiled(program)
    for _ in range(2):
        for apart in (True, False):
            found = []
            for function in (program, run):
                plain = torch.arange(3.0)
                tensor = (plain.clone() if apart else plain).as_subclass(Plain)
                found.append(_facts(function(plain, tensor)))
            assert found[0] == found[1]


def test_subclass_with_operators_elsewhere_is_left_to_python():
    from torch.testing._internal.two_tensor import TwoTensor

    def program(x):
        return (x * 2).a + 1

    run, said = compiled(program)
    for _ in range(2):
        pair = TwoTensor(torch.ones(2), torch.zeros(2))
        assert torch.equal(run(pair), program(pair))
    assert "tensor-kind" in said.codes()


def leaf_of_a_copy(x):
    return x.clone().requires_grad_()


def leaf_with_a_gradient(x):
    y = x.clone().requires_grad_()
    (y * 2).sum().backward()
    return y


def gradient_of_a_new_leaf(x):
    y = x.clone().requires_grad_()
    (y * 2).sum().backward()
    return y.grad


def result_of_a_new_leaf(x):
    return (x.clone().requires_grad_() * 2).sum()


def alias_of_a_leaf(x):
    return torch.ones(2).requires_grad_().as_subclass(type(x))


@pytest.mark.parametrize(
    "program",
    [leaf_of_a_copy, leaf_with_a_gradient, gradient_of_a_new_leaf, result_of_a_new_leaf, alias_of_a_leaf],
    ids=lambda program: program.__name__,
)
def test_leaves_that_the_program_makes(program):
    def facts(value):
        gradient = value.grad if value.is_leaf else None
        gradient = None if gradient is None else gradient.tolist()
        return type(value), value.is_leaf, value.requires_grad, gradient, value.tolist()

    run, _ = compiled(program)
    expected = facts(program(torch.ones(2).as_subclass(Plain)))
    for _ in range(2):
        assert facts(run(torch.ones(2).as_subclass(Plain))) == expected


class Labelled(torch.Tensor):
    """Made as PINA's and others' are: `__new__` hands the elements to torch.Tensor, `__init__` sets attributes."""

    @staticmethod
    def __new__(cls, x, labels, *args, **kwargs):
        if isinstance(x, Labelled):
            return x
        return super().__new__(cls, x, *args, **kwargs)

    def __init__(self, x, labels):
        super().__init__()
        self.labels = list(labels)

    def extract(self, label):
        return Labelled(self.as_subclass(torch.Tensor)[:, [self.labels.index(label)]], [label])


class Marked(torch.Tensor):
    made = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(found, Marked):
            found.tag = next((arg.tag for arg in args if hasattr(arg, "tag")), "none")
        return found


class Whole(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


def _labelled(x):
    y = Labelled(x * 2, "ab")
    return y, y.labels, y + 1


def _extracted(x):
    return Labelled(x, "ab").extract("b").sin() * 3


def _given_back(x):
    y = Labelled(x, "ab")
    return Labelled(y, "cd") is y, y.labels


def _tagged(x):
    y = Marked(x)
    y.tag = "first"
    z = (y * 2).relu()
    return z, z.tag, z.sum() + 1


def _of_a_subclass(x):
    return Whole(Marked(x)) + 1


def _written_to(x):
    y = x * 2
    z = Marked(y)
    z.tag = "w"
    z.add_(1)
    return y, z


def _loss(x):
    return (Labelled(x, "ab") ** 2).sum()


def _portrait(value):
    if isinstance(value, torch.Tensor):
        history = value.grad_fn is not None
        plain = value.detach().as_subclass(torch.Tensor)
        return type(value), plain.tolist(), value.requires_grad, history, value._is_view(), dict(vars(value))
    return [_portrait(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("program", [_labelled, _extracted, _given_back, _tagged, _of_a_subclass, _written_to, _loss])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_instances_made_of_a_tensor(program, requires_grad):
    run, seen = compiled(program)
    for rows in (2, 3, 2, 5):
        found = []
        for function in (run, program):
            x = torch.arange(2.0 * rows).view(rows, 2).requires_grad_(requires_grad)
            result = function(x)
            found.append([_portrait(result)])
            if requires_grad and isinstance(result, torch.Tensor):
                result.sum().backward()
                found[-1].append(x.grad.tolist())
        assert found[0] == found[1]
    assert not seen.breaks and not seen.skips


def test_other_arguments_of_new_are_left_to_python():
    def program(x):
        return Marked([1.0, 2.0]) * 2, Whole(2, 3).shape, x + 1

    run, seen = compiled(program)
    for _ in range(2):
        assert _portrait(run(torch.ones(2))) == _portrait(program(torch.ones(2)))
    assert seen.breaks


def test_subclasses_by_their_constructor_in_c():
    def program(x):
        y = torch.Tensor._make_subclass(Plain, x * 2)
        z = torch.Tensor._make_subclass(torch.Tensor, y.as_subclass(torch.Tensor) + 1)
        return y, (y + z).as_subclass(torch.Tensor), type(y).__name__, y.requires_grad

    fast, said = compiled(program)
    for x in (torch.randn(3), torch.randn(3, requires_grad=True)):
        found, expected = fast(x), program(x)
        assert type(found[0]) is Plain and found[2:] == expected[2:]
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert not said.breaks
