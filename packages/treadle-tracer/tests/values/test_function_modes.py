"""Torch function modes entered inside a function: what they are asked, with which arguments, and in which order, against eager."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from compile_runs import compiled
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import set_device

try:
    import numpy as np
except ImportError:  # treadle-tracer alone needs none
    np = None

F = torch.nn.functional


class Noting(TorchFunctionMode):
    """Notes what it is asked."""

    def __init__(self):
        self.asked = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.asked.append((func.__name__, [kind.__name__ for kind in types], len(args), kwargs))
        return func(*args, **(kwargs or {}))


class AddsOne(TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result + 1 if function is torch.mul else result


class Rewrites(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.ones, torch.zeros):
            kwargs["dtype"] = torch.float64
        if func is torch.Tensor.__getitem__:
            return args[0].select(0, 1)
        return func(*args, **kwargs)


class Refusing(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return NotImplemented


class WithoutSubclasses(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Tagged(torch.Tensor):
    pass


LINEAR = torch.nn.Linear(3, 3)
ATTENTION = torch.nn.MultiheadAttention(4, 2)
MODEL = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Dropout(0.0), torch.nn.GELU())
OUTSIDE = Noting()


def operators(x):
    with Noting() as mode:
        y = x + 1
        y *= 2
        found = [1 - y, -y, y > 0, 3**y, y**2, y @ y.T, 2 / (y + 1), y == 1, y[0], y[:2], y[1, :]]
    return found, mode.asked


def methods_and_attributes(x):
    with Noting() as mode:
        found = [
            x.view(-1),
            x.sum(-1, keepdim=True),
            *x.split(1),
            x.norm(),
            x.mT,
            x.size(0),
            x.shape,
            x.dtype,
            len(x),
            x.dim(),
        ]
        found.append(x.clone().add_(1))
        rows = [row * 2 for row in x]
        y = x.clone()
        y[0] = 5
    return found, rows, y, mode.asked


def functions(x):
    with Noting() as mode:
        a = F.relu(x) * torch.ones(3)
        found = [a, LINEAR(a), torch.cat([a, x]), torch.tensor([1.0, 2.0]), F.softmax(x, -1), torch.einsum("ij->j", x)]
        found.append(torch.ops.aten.relu(x))
    return found, mode.asked


def switches(x):
    with Noting() as mode:
        with torch.no_grad():
            y = x * 2
    return y, mode.asked


def a_module(x):
    with Noting() as mode:
        y = MODEL(x)
        y = ATTENTION(y, y, y)[0]
    return y, mode.asked


def results_changed(x):
    with AddsOne():
        return torch.mul(x, 2), x * 2


def arguments_changed(x):
    with Rewrites():
        return x[2], torch.ones(3), torch.rand(3).shape


def nested(x):
    with Rewrites(), Noting() as mode, AddsOne():
        found = torch.mul(x, 2), torch.ones(3), x[0]
        depth = len(_get_current_function_mode_stack())
    return found, depth, mode.asked


def same_mode_twice(x):
    mode = Noting()
    with mode:
        with mode:
            y = x.sin()
    return y, mode.asked


def pushed_and_popped(x):
    mode = Noting()
    torch._C._push_on_torch_function_stack(mode)
    y, depth = x + 1, torch._C._len_torch_function_stack()
    popped = torch._C._pop_torch_function_stack()
    return y, depth, popped is mode, mode.asked


def mode_from_outside(x):
    OUTSIDE.asked.clear()
    with OUTSIDE:
        y = x.sin() + 1
    return y, list(OUTSIDE.asked)


def base_mode(x):
    with BaseTorchFunctionMode():
        return x * torch.ones(3)


def subclasses_off(x):
    with WithoutSubclasses():
        return x + 1


def subclass_and_mode(x):
    tagged = x.as_subclass(Tagged)
    with Noting() as mode:
        y = tagged + 1
    return y, type(y).__name__, mode.asked


def left_by_exception(x):
    try:
        with AddsOne():
            raise ValueError
    except ValueError:
        return x * 2 + 1


def default_device(x):
    with torch.device("cpu") as device:
        return x + torch.ones(3), torch.tensor(2.0), torch.get_default_device(), device


def other_device(x):
    with torch.device("meta"):
        y, z = torch.ones(3), torch.arange(3, device="cpu")
    return y.device, z + x, torch.ones(2).device, torch.get_default_device()


def device_and_mode(x):
    with torch.device("cpu"), Noting() as mode:
        y = torch.ones(3) + x
    return y, mode.asked


@set_device("cpu")
def device_decorator(x):
    return x + torch.zeros(3)


def decision(x):
    with Noting() as mode:
        y = x if (x > 100).any() else x + 1
    return y, mode.asked


def broken_inside(x):
    with Noting() as mode:
        torch._dynamo.graph_break()
        y = x + 1
    return y * 2, mode.asked


def refused(x):
    with Refusing():
        return x + 1


def texts(x):
    with Noting() as mode:
        print(x)
        text = f"{x} {x.sum()}"
    return text, mode.asked


def an_array(x):
    with Noting() as mode:
        y = np.add(x.detach().numpy(), 1)
    return y.tolist(), mode.asked


def numbers_of_tensors(x):
    with Noting() as mode:
        number, items = x.sum().item(), x.tolist()
        other = [1, 2, 3][torch.tensor(1)], float(x[0, 0]), int(x[0, 1]), x[0, 0] in [1.0], len(x)
    return number, items, other, mode.asked


def branches_by_size(x, limit=2):
    with Noting() as mode:
        y = x + 1 if x.shape[0] > limit else x - 1
    return y, mode.asked


def a_vmapped_function(x):
    with AddsOne():
        return torch.vmap(lambda row: torch.mul(row, 2))(x)


CAPTURED = [
    *(operators, methods_and_attributes, functions, switches, a_module, results_changed, arguments_changed, nested),
    *(same_mode_twice, pushed_and_popped, mode_from_outside, base_mode, subclasses_off, left_by_exception),
    *(default_device, other_device, device_and_mode, device_decorator),
]
OTHERS = [
    texts,
    *([] if np is None else [an_array]),
    numbers_of_tensors,
    branches_by_size,
    subclass_and_mode,
    decision,
    broken_inside,
    refused,
    a_vmapped_function,
]


def described(value):
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad, value.dtype, type(value)
    return value


def outcome(function, requires_grad):
    x = torch.arange(9.0).view(3, 3).requires_grad_(requires_grad)
    try:
        found = described(function(x))
    except (RuntimeError, TypeError) as error:
        found = type(error)
    return str(found), torch._C._len_torch_function_stack(), torch.is_grad_enabled()


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", [*CAPTURED, *OTHERS], ids=lambda function: function.__name__)
def test_modes_are_asked_as_in_eager(function, requires_grad):
    expected = outcome(function, requires_grad)
    run, _ = compiled(function)
    for _ in range(2):
        assert outcome(run, requires_grad) == expected


@pytest.mark.parametrize("function", CAPTURED, ids=lambda function: function.__name__)
def test_one_graph(function):
    run, recorder = compiled(function, fullgraph=True)
    run(torch.arange(9.0).view(3, 3))
    assert len(recorder.graphs) == 1 and not recorder.breaks
