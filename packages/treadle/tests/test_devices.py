"""Programs on devices, and with tensors, that no target of treadle_codegen takes: eager's results, and one warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import treadle
from treadle.bugs import reset_warnings


@pytest.fixture(autouse=True)
def fresh_warnings():
    reset_warnings()
    yield
    treadle.reset()


def warned(function, *arguments):
    """What the compiled function returns at each call, with the messages of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [function(*values) for values in arguments]
    return results, [str(w.message) for w in caught if issubclass(w.category, treadle.TreadleWarning)]


def test_meta_tensors_run_in_eager_with_one_warning():
    compiled, other = treadle.compile(lambda x: (x + 1).sum(0)), treadle.compile(lambda x: x.relu())
    meta = torch.empty(4, 3, device="meta")
    results, messages = warned(lambda x: (compiled(x), other(x)), (meta,), (meta,), (torch.empty(5, 3, device="meta"),))
    assert all(first.device.type == "meta" and first.shape == (3,) for first, _ in results)
    (message,) = messages
    assert "'meta'" in message and ".to('cpu')" in message


def test_a_graph_that_was_compiled_for_the_cpu_is_not_run_on_another_device():
    compiled = treadle.compile(lambda x: x * 2)
    (first, second, third), messages = warned(
        compiled, (torch.ones(3),), (torch.empty(3, device="meta"),), (torch.ones(3),)
    )
    assert torch.equal(first, torch.full((3,), 2.0)) and torch.equal(third, first)
    assert second.device.type == "meta" and len(messages) == 1


def test_mixed_devices_and_results_elsewhere():
    mixed = treadle.compile(lambda x, y: (x + 1, y * 2))
    moved = treadle.compile(lambda x: (x + 1).to("meta"))
    x, y = torch.ones(3), torch.empty(2, device="meta")
    ((a, b),), _ = warned(mixed, (x, y))
    assert torch.equal(a, x + 1) and b.device.type == "meta" and b.shape == (2,)
    (c,), _ = warned(moved, (x,))
    assert c.device.type == "meta" and c.shape == (3,)


def test_parameters_elsewhere():
    layer = torch.nn.Linear(3, 2, device="meta").requires_grad_(False)
    (result,), messages = warned(treadle.compile(layer), (torch.empty(4, 3, device="meta"),))
    assert result.device.type == "meta" and result.shape == (4, 2) and len(messages) == 1


def test_fake_cuda_tensors():
    compiled = treadle.compile(lambda x: x + 1)
    with FakeTensorMode():
        (result,), _ = warned(compiled, (torch.empty(4, device="cuda"),))
    assert result.device.type == "cuda" and result.shape == (4,)


@pytest.mark.parametrize(
    "make", [lambda: torch._efficientzerotensor((4,)), lambda: torch._to_functional_tensor(torch.zeros(4))]
)
def test_tensors_without_memory(make):
    compiled = treadle.compile(lambda x: x + 1)
    (first,), messages = warned(compiled, (make(),))
    assert len(messages) == 1 and "Pass an ordinary tensor" in messages[0]
    (plain, again), _ = warned(compiled, (torch.zeros(4),), (make(),))  # and after the function was compiled for others
    for result in (first, plain, again):
        value = torch._from_functional_tensor(result) if torch._is_functional_tensor(result) else result
        assert torch.equal(value, torch.ones(4))


def test_a_tensor_without_memory_made_inside():
    compiled = treadle.compile(lambda x: x * torch._efficientzerotensor((4,)) + 1)
    (result,), _ = warned(compiled, (torch.ones(4),))
    assert torch.equal(result, torch.ones(4))
