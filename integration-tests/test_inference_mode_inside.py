"""`torch.inference_mode` entered inside a compiled function, against eager: what is an inference tensor, gradients, modes afterwards."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import treadle


def reduced_outside(x):
    with torch.inference_mode():
        y = x + 1
    return y.mean() + x.exp().sum().detach()


def made_inside_and_outside(x):
    with torch.inference_mode():
        y, view = x * 2, x.view(-1)
    return y, view, x.sin() * 3


@torch.inference_mode()
def decorated(x):
    return (x + 1) * 2


@torch.inference_mode
def decorated_without_call(x):
    return x[:1].exp()


def nested(x):
    with torch.no_grad():
        with torch.inference_mode(False):
            a, on = x * 2, torch.is_grad_enabled()
        b = x * 3
    with torch.inference_mode():
        with torch.enable_grad():
            c = x * 5
        with torch.inference_mode(False):
            d = x * 7
        off = torch.is_grad_enabled()
    return a, b, c, d, on, off, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def grad_mode_set_inside(x):
    with torch.inference_mode():
        torch.set_grad_enabled(True)
        y = x * 2
    return y, x * 3, torch.is_grad_enabled()


def normal_tensor_written(x):
    w = x + 1
    with torch.inference_mode():
        w.mul_(2)
        q = w[0] + 1
    return w * x.detach(), q


def argument_written(x):
    y = x.detach()
    with torch.inference_mode():
        y.mul_(2)
        rows = y.topk(2)
    return rows.values, rows.indices, y + 1


def saved_for_backward(x):
    with torch.inference_mode():
        y = x + 1
    return y * x


def written_outside(x):
    with torch.inference_mode():
        y = x + 1
    y.add_(1)
    return y


def cloned_outside(x):
    with torch.inference_mode():
        y = x + 1
    return y.clone() * x


def asked(x):
    with torch.inference_mode():
        y = x + 1
    z = y + 1
    return y.is_inference(), torch.is_inference(z), x.is_inference(), y.clone().is_inference(), z


def left_by_exception(x):
    y = x
    try:
        with torch.inference_mode():
            y = x + 1
            raise ValueError
    except ValueError:
        return x * 2 + y.detach()


def broken_inside(x):
    with torch.inference_mode():
        y = x + 1
        torch._dynamo.graph_break()
        z = y + 2
    return z, x * 2


def raises_inside(x):
    with torch.inference_mode():
        with torch.enable_grad():
            return torch.linalg.inv(x[0] * torch.zeros(3, 3))


def first_met_inside(x):
    with torch.inference_mode():
        y = x * WEIGHT
    return y, WEIGHT * x


WEIGHT = torch.ones(4, requires_grad=True)
CAPTURED = [
    *(reduced_outside, made_inside_and_outside, decorated, decorated_without_call, nested, grad_mode_set_inside),
    *(normal_tensor_written, argument_written, cloned_outside, asked, left_by_exception, first_met_inside),
]
OTHERS = [saved_for_backward, written_outside, broken_inside, raises_inside]


def described(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.is_inference(), value.requires_grad, value._is_view()
    return value


def outcome(function, requires_grad, grad):
    """Everything that a call leaves: results, gradients, exception, modes."""
    x = torch.arange(4.0).requires_grad_(requires_grad)
    with torch.set_grad_enabled(grad):
        try:
            result = function(x)
            found = [described(result)]
            results = result if isinstance(result, tuple) else (result,)
            losses = [y.sum() for y in results if isinstance(y, torch.Tensor) and y.requires_grad]
            if losses:
                found.append(torch.autograd.grad(sum(losses), x, allow_unused=True))
        except RuntimeError as error:
            found = [type(error), str(error)[:60]]
        return str([*found, x.detach(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("function", [*CAPTURED, *OTHERS], ids=lambda function: function.__name__)
def test_what_escapes_is_eagers(function, backend):
    for requires_grad in (False, True):
        for grad in (True, False):
            expected = outcome(function, requires_grad, grad)
            compiled = treadle.compile(function, backend=backend, fullgraph=function in CAPTURED)
            for _ in range(2):
                assert outcome(compiled, requires_grad, grad) == expected


@pytest.mark.parametrize("function", CAPTURED, ids=lambda function: function.__name__)
def test_called_in_inference_mode(function):
    compiled = treadle.compile(function)
    with torch.inference_mode():
        expected = outcome(function, False, False)
        assert outcome(compiled, False, False) == expected
        assert outcome(compiled, False, False) == expected


def test_a_module_called_by_a_decorated_function():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))

    @torch.inference_mode()
    def predict(x):
        return model(x).softmax(-1)

    compiled = treadle.compile(predict, fullgraph=True)
    for rows in (3, 3, 5, 7):
        x = torch.randn(rows, 4)
        found = compiled(x)
        torch.testing.assert_close(found, predict(x))
        assert found.is_inference() and not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_the_mode_is_left_when_the_graph_raises():
    def function(x, index):
        with torch.inference_mode():
            return x[index] * 2

    compiled = treadle.compile(function, backend="eager")
    x = torch.arange(3.0)
    assert compiled(x, torch.tensor([1])).is_inference()
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([7]))
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_a_tensor_is_indexed_behind_a_switch():
    # The call that takes an item out of a tuple has the same target, and stands where the tuple is made.
    def program(x, index):
        before = x * 2
        with torch.inference_mode(False):
            inside = before.sin()
        chosen = index.clamp(max=3)
        return inside[chosen] + before[chosen]

    compiled = treadle.compile(program)
    for size in (5, 5, 7):
        x, index = torch.randn(size), torch.arange(size)
        torch.testing.assert_close(compiled(x, index), program(x, index))


@torch.enable_grad()
def with_gradients(x):
    return x.sin() * 2


@torch.inference_mode()
def without_gradients(x):
    return x * 2


@pytest.mark.parametrize("around", [contextlib.nullcontext, torch.enable_grad])
@pytest.mark.parametrize("function", [with_gradients, lambda x: (with_gradients(x), without_gradients(x))])
def test_gradients_that_are_turned_on_in_inference_mode_leave_no_history(function, around):
    x = torch.randn(3, requires_grad=True) * 1
    with torch.inference_mode(), around():
        expected, found = function(x), treadle.compile(function)(x)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert not mine.requires_grad and mine.grad_fn is None and mine.is_inference() and theirs.is_inference()
