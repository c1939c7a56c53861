"""Views that are made with gradients off: what they are to autograd as results, and which writes it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treadle


@pytest.fixture(autouse=True)
def everything_compiled():
    treadle.reset()
    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        yield
    treadle.reset()


def returned_with_its_base(x, plain, given):
    h = x * 2
    with torch.no_grad():
        v = h[0]
    return v, h


def returned_alone(x, plain, given):
    h = x * 2
    with torch.no_grad():
        v = h.t()
    return v, h.detach() + 1


def a_part_returned_alone(x, plain, given):
    h = plain * 3 + x
    with torch.no_grad():
        v = h[..., 0]
    return (v,)


def returned_beside_something_computed(x, plain, given):
    h = plain * 3 + x
    with torch.no_grad():
        v = h.view(-1)
    return v, v * 2, x * 3


def of_an_input(x, plain, given):
    with torch.no_grad():
        v = given[0]
    return v, given.unsqueeze(0)


def of_what_was_detached(x, plain, given):
    with torch.no_grad():
        v, w = plain.detach()[0], given.detach()[0]
    return v, w, x * 2


def of_what_was_detached_before(x, plain, given):
    h = (x * 2).detach()
    d = given.detach()
    with torch.no_grad():
        v, w = h[0], d.view(-1)[1:]
    return v, w, h


def of_an_input_beside_gradients(x, plain, given):
    with torch.no_grad():
        v = given[0]
    return x, v, x * given


def viewed_again(x, plain, given):
    h = x * 2
    with torch.no_grad():
        v = h[0]
    return h, v[1:]


def of_a_tensor_that_is_written_to(x, plain, given):
    h = torch.zeros(3, 4)
    with torch.no_grad():
        v = h[0]
    h.add_(x)
    return h, v


def detached(x, plain, given):
    h = plain * 2
    with torch.no_grad():
        v = h[1].detach()
    return h, h.detach(), v, given.detach()[0], plain[1].detach(), (x * 2).detach()


def given_back(x, plain, given):
    with torch.no_grad():
        v = plain.view(3, 4)
    w = v[1:]
    return plain, v.mul_(2), w, w.contiguous(), given.reshape(12)


class Viewing(torch.autograd.Function):
    """Its body, without gradients, makes a view of what it has computed."""

    @staticmethod
    def forward(ctx, x):
        return (x * 2).view(12)[2:]

    @staticmethod
    def backward(ctx, gradient):
        return torch.nn.functional.pad(gradient, (2, 0)).view(3, 4) * 2


def of_a_custom_function(x, plain, given):
    y = Viewing.apply(x)
    y.mul_(2)
    return y, Viewing.apply(plain)


def recorded_views(x, plain, given):
    h = plain.mul(2)
    v = h[0]
    with torch.no_grad():
        other = plain * 3
    return h, v, other, given.view(-1), given.data, plain.t()


RETURNING = [
    returned_with_its_base,
    returned_alone,
    a_part_returned_alone,
    returned_beside_something_computed,
    of_an_input,
    of_what_was_detached,
    of_what_was_detached_before,
    of_an_input_beside_gradients,
    viewed_again,
    of_a_tensor_that_is_written_to,
    detached,
    given_back,
    of_a_custom_function,
    recorded_views,
]


def writes_to_a_part(x, plain, given):
    h = x * 2
    with torch.no_grad():
        v = h[0]
    v.mul_(2)
    return h


def writes_a_history(x, plain, given):
    h = torch.zeros(3, 4)
    with torch.no_grad():
        v = h[0]
    v.mul_(x[0])
    return h


def writes_a_history_to_an_input(x, plain, given):
    with torch.no_grad():
        v = plain[0]
    v.mul_(x[0])
    return plain


def writes_a_history_to_a_part(x, plain, given):
    with torch.no_grad():
        v = plain.view(-1)
    part = v[1:5]
    part.mul_(x[0])
    return plain


def writes_to_a_given_history(x, plain, given):
    with torch.no_grad():
        v = given[..., 0]
    v.mul_(2)
    return v


def writes_without_gradients(x, plain, given):
    h = x * 2
    with torch.no_grad():
        v = h[0]
        v.mul_(2)
    return h * 3, v


def writes_no_history(x, plain, given):
    with torch.no_grad():
        v = plain[0]
        w = v[1:]
    v.mul_(2)
    w.add_(plain[1, 1:])
    return plain * x


def writes_to_what_is_detached(x, plain, given):
    with torch.no_grad():
        v = plain.detach()
    v.mul_(x)
    return v


def begins_without_gradients(x, plain, given):
    """Called with gradients off."""
    v = plain[0]
    with torch.enable_grad():
        v.mul_(x[0])
    return plain


WRITING = [
    writes_to_a_part,
    writes_a_history,
    writes_a_history_to_an_input,
    writes_a_history_to_a_part,
    writes_to_a_given_history,
    writes_without_gradients,
    writes_no_history,
    writes_to_what_is_detached,
]


def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    leaf = torch.randn(3, 4, requires_grad=True)
    return torch.randn(3, 4, requires_grad=True), torch.randn(3, 4), leaf.clone()


def facts(tensor: torch.Tensor) -> Any:
    try:
        has_node = tensor.grad_fn is not None
    except RuntimeError as refused:
        return str(refused)
    return tensor.requires_grad, tensor.is_leaf, has_node, tensor._version, tensor.stride()


def outcome(function: Callable[..., Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """What a call returns or raises, with gradients with respect to all arguments, and what a write to each result then does."""
    x, plain, given = arguments()
    try:
        results = function(x, plain, given)
    except RuntimeError as error:
        return [type(error)], [plain]
    results = results if isinstance(results, tuple) else (results,)
    told: list[Any] = [*map(facts, results)]
    values = [result.detach().clone() for result in results]
    for result in results:
        if isinstance(facts(result), tuple) and result.requires_grad:
            gradients = torch.autograd.grad(result.sum(), (x, given), retain_graph=True, allow_unused=True)
            told += [gradient is None for gradient in gradients]
            values += [gradient for gradient in gradients if gradient is not None]
    for result in results:
        try:
            result.mul_(x[0, 0])
        except RuntimeError as error:
            told.append(type(error))
    return [*told, facts(plain)], [*values, plain.detach()]


def check(function: Callable[..., Any]) -> None:
    told, values = outcome(function)
    compiled = treadle.compile(function)
    for _ in range(2):
        found, found_values = outcome(compiled)
        assert found == told
        torch.testing.assert_close(found_values, values)


@pytest.mark.parametrize("function", RETURNING)
def test_results_are_to_autograd_what_eagers_are(function):
    check(function)


@pytest.mark.parametrize("function", WRITING)
def test_writes_are_refused_where_eager_refuses_them(function):
    check(function)


def test_writes_are_refused_in_a_program_that_begins_without_gradients():
    with torch.no_grad():
        x, plain, _ = arguments()
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            begins_without_gradients(x, plain, None)
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            treadle.compile(begins_without_gradients)(x, plain, None)


def test_programs_that_return_such_views_are_compiled():
    compiled = treadle.compile(returned_beside_something_computed)
    compiled(*arguments())
    assert treadle.stats().graphs == 1
    assert treadle.stats().eager_graphs == ()
