"""Objects with `__torch_function__` as arguments of torch's functions in compiled functions."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

F = torch.nn.functional
CALLS: list[object] = []


class Tagged:
    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        CALLS.append((cls, function.__name__, kinds, len(args), kwargs))
        plain = [arg.value if isinstance(arg, Tagged) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


class Below(Tagged):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        CALLS.append((cls, kinds))
        return NotImplemented if function is torch.mul else super().__torch_function__(function, kinds, args, kwargs)


class Refusing:
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        CALLS.append(kinds)
        return NotImplemented


class OfTheInstance:
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        return 5


OUTSIDE = Tagged(torch.ones(2))
REFUSING = Refusing()
WEIGHT = torch.nn.Parameter(torch.ones(2))


def of_functions_in_c(x):
    return torch.add(Tagged(x), 1), torch.add(x, OUTSIDE, alpha=2), torch.sum(OUTSIDE), torch.where(x > 0, OUTSIDE, x)


def of_functions_in_python(x):
    return F.relu(Tagged(x - 1)), F.softmax(Tagged(x), -1), F.mse_loss(x, OUTSIDE), F.mse_loss(OUTSIDE, x)


def among_the_items(x):
    return torch.einsum("i,i->i", x, OUTSIDE), torch.stack([x, x])


def of_a_layer(x):
    return torch.nn.Linear(2, 2).requires_grad_(False)(Tagged(x)).shape


def the_class_below_first(x):
    return torch.add(Tagged(x), Below(x)), torch.mul(Tagged(x), Below(x))


def beside_a_parameter(x):
    return F.mse_loss(WEIGHT, OUTSIDE).detach(), torch.add(WEIGHT, OUTSIDE).detach()


def questions(x):
    return torch.is_tensor(OUTSIDE), isinstance(OUTSIDE, torch.Tensor), torch.overrides.has_torch_function((x, OUTSIDE))


def of_an_operator(x):
    return x + Tagged(x)


def refused(x):
    try:
        return torch.add(REFUSING, x)
    except TypeError as error:
        return str(error)[:40]


def of_an_instance(x):
    return torch.add(OfTheInstance(), x)


WHOLE = (
    of_functions_in_c,
    of_functions_in_python,
    among_the_items,
    of_a_layer,
    the_class_below_first,
    beside_a_parameter,
    questions,
)


def _outcome(function, x):
    CALLS.clear()
    result = function(x)
    parts = result if isinstance(result, tuple) else (result,)
    return [part.tolist() if isinstance(part, torch.Tensor) else part for part in parts], list(CALLS)


@pytest.mark.filterwarnings("ignore:Defining your")
@pytest.mark.parametrize(
    "program", (*WHOLE, of_an_operator, refused, of_an_instance), ids=lambda program: program.__name__
)
def test_programs(program):
    run, said = compiled(program)
    for start in (1.0, 2.0):
        assert _outcome(run, torch.full((2,), start)) == _outcome(program, torch.full((2,), start))
    assert bool(said.breaks or said.skips) == (program not in WHOLE)
