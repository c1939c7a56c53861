"""Default devices that are set around a compiled function, against eager, and other modes, under which nothing is compiled."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch.overrides import TorchFunctionMode

from treadle_tracer.output.outside_devices import active_devices, devices_outside, without_devices

F = torch.nn.functional
LINEAR = torch.nn.Linear(3, 3)


def makes_tensors(x):
    return x + torch.ones(3, device=x.device), torch.zeros(2).device, torch.get_default_device()


def calls_functions_in_python(x):
    y = F.relu(LINEAR(x)) + F.softmax(x, -1)
    return F.pad(y, (1, 1)), torch.empty(2).device, F.one_hot(torch.tensor([1], device="cpu"), 3)


def device_inside(x):
    with torch.device("cpu"):
        y = torch.ones(3)
    return x + y, torch.ones(1).device


@pytest.mark.parametrize(
    "function", [makes_tensors, calls_functions_in_python, device_inside], ids=lambda f: f.__name__
)
def test_one_graph_per_default_device(function):
    run, recorder = compiled(function, fullgraph=True)
    x = torch.ones(2, 3)
    for device in ("meta", "cpu", "meta", None, "cpu", None):
        if device is None:
            assert str(run(x)) == str(function(x))
            continue
        with torch.device(device):
            assert str(run(x)) == str(function(x))
        assert torch._C._len_torch_function_stack() == 0
    assert len(recorder.graphs) == 3


def test_default_device_of_the_process():
    run, recorder = compiled(makes_tensors, fullgraph=True)
    torch.set_default_device("cpu")
    try:
        x = torch.ones(2, 3)
        assert str(run(x)) == str(run(x)) == str(makes_tensors(x))
        assert torch._C._len_torch_function_stack() == 1
    finally:
        torch.set_default_device(None)
    assert len(recorder.graphs) == 1


def test_nothing_is_compiled_under_other_modes():
    class Counting(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.count += 1
            return func(*args, **(kwargs or {}))

    run, recorder = compiled(makes_tensors)
    x = torch.ones(2, 3)
    with torch.device("cpu"), Counting():
        makes_tensors(x)
        expected, Counting.count = Counting.count, 0
        run(x)
        assert Counting.count == expected
    assert not recorder.graphs


def test_devices_are_put_back_when_something_raises():
    with torch.device("meta"):
        with pytest.raises(ValueError), without_devices():
            assert devices_outside() == (torch.device("meta"),) and active_devices() == ()
            raise ValueError
        assert active_devices() == (torch.device("meta"),) and devices_outside() == ()
