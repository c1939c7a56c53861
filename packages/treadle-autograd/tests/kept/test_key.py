"""What has a key, and what the key distinguishes."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from joint_graphs import with_examples
from torch import fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from treadle_autograd.kept.key import program_key, why_settings_unknown


def plain(x, w):
    return (F.gelu(x @ w),)


def key_of(function=plain, inputs=None, partition="cut", decompositions=None, compilers=("c", "c"), examples=True):
    inputs = inputs or [torch.ones(2, 3), torch.ones(3, 4).requires_grad_()]
    gm = fx.symbolic_trace(function)
    if examples:
        with torch.no_grad():
            with_examples(gm, inputs)
    return program_key(gm, inputs, partition, {} if decompositions is None else decompositions, compilers)


def test_equal_programs_have_equal_keys():
    assert key_of() == key_of() is not None


def _another_decomposition():
    return {torch.ops.aten.gelu.default: F.gelu}


def _shared():
    x = torch.ones(3, 3)
    return [x, x.detach().requires_grad_()]


def _apart():
    return [torch.ones(3, 3), torch.ones(3, 3).requires_grad_()]


OTHERS = {
    "function": lambda: key_of(lambda x, w: (F.silu(x @ w),)),
    "constant": lambda: key_of(lambda x, w: (F.gelu(x @ w, approximate="tanh"),)),
    "order of results": lambda: key_of(lambda x, w: (F.gelu(x @ w), x)),
    "sizes": lambda: key_of(inputs=[torch.ones(5, 3), torch.ones(3, 4).requires_grad_()]),
    "strides": lambda: key_of(inputs=[torch.ones(3, 2).t(), torch.ones(3, 4).requires_grad_()]),
    "dtype": lambda: key_of(inputs=[torch.ones(2, 3).double(), torch.ones(3, 4).double().requires_grad_()]),
    "gradients": lambda: key_of(inputs=[torch.ones(2, 3).requires_grad_(), torch.ones(3, 4).requires_grad_()]),
    "offset": lambda: key_of(inputs=[torch.ones(3, 3)[1:], torch.ones(3, 4).requires_grad_()]),
    "class": lambda: key_of(inputs=[torch.ones(2, 3), torch.nn.Parameter(torch.ones(3, 4))]),
    "partition": lambda: key_of(partition="another cut"),
    "decompositions": lambda: key_of(decompositions=_another_decomposition()),
    "compiler": lambda: key_of(compilers=("c", "d")),
}


class _Named(dict):
    """Decompositions that say what they are, and are not to be read."""

    def __init__(self, identity):
        super().__init__()
        self.identity = identity

    def items(self):
        pytest.fail("the decompositions were read")


def test_decompositions_with_an_identity_are_not_read():
    first, same, other = (key_of(decompositions=_Named(name)) for name in ("a", "a", "b"))
    assert first == same is not None
    assert len({first, other, key_of()}) == 3


@pytest.mark.parametrize("other", OTHERS)
def test_programs_that_differ_have_different_keys(other):
    found = OTHERS[other]()
    assert found is not None and found != key_of()


def test_inputs_that_share_memory_are_another_program():
    assert key_of(inputs=_shared()) != key_of(inputs=_apart())
    assert key_of(inputs=_shared()) == key_of(inputs=_shared())


@contextlib.contextmanager
def _default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        _default_dtype,
        _threads,
        lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        torch.no_grad,
    ],
)
def test_settings_are_part_of_the_key(setting):
    before = key_of()
    with setting():
        within = key_of()
    assert within is not None and within != before == key_of()


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [_FunctionMode, _DispatchMode])
def test_nothing_is_kept_while_a_mode_is_active(mode):
    gm, inputs = fx.symbolic_trace(plain), [torch.ones(2, 3), torch.ones(3, 4).requires_grad_()]
    with torch.no_grad():
        with_examples(gm, inputs)
    with mode():
        assert program_key(gm, inputs, "cut", {}, ("c", "c")) is None


def test_nothing_is_kept_once_a_program_has_replaced_a_kernel():
    assert why_settings_unknown() is None
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("gelu", lambda x, approximate="none": x, "CPU")
        assert "gelu" in (why_settings_unknown() or "")
    finally:
        library._destroy()
    assert why_settings_unknown() is None


@fx.wrap
def _own_function(x):
    return x * 2


def _with_history():
    return [torch.ones(2, 3), (torch.ones(3, 4).requires_grad_() * 2)]


WITHOUT = {
    "a function of the program": lambda: key_of(lambda x, w: (_own_function(x @ w),)),
    "no example values": lambda: key_of(examples=False),
    "an input with a history": lambda: key_of(inputs=_with_history()),
    "an unknown partition": lambda: key_of(partition=None),
    "a compiler that keeps nothing": lambda: key_of(compilers=(None, "c")),
    "a sparse input": lambda: key_of(inputs=[torch.ones(2, 3).to_sparse(), torch.ones(3, 4).requires_grad_()]),
}


@pytest.mark.parametrize("program", WITHOUT)
def test_programs_without_a_key(program):
    assert WITHOUT[program]() is None


@pytest.mark.parametrize(
    ("place", "name", "function"),
    [
        (torch, "batch_norm", lambda x, w: (F.batch_norm(x, None, None, training=True) @ w,)),
        (F, "_verify_batch_size", lambda x, w: (F.batch_norm(x, None, None, training=True) @ w,)),
        (F, "relu", lambda x, w: (F.relu(x @ w),)),
        (torch.Tensor, "mul", lambda x, w: (x.mul(2) @ w,)),
        (torch.Tensor, "softmax", lambda x, w: (F.softmax(x, -1) @ w,)),
    ],
)
def test_functions_that_a_program_has_replaced(place, name, function, monkeypatch):
    assert key_of(function) is not None
    real = getattr(place, name)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, lambda *args, **kwargs: real(*args, **kwargs))
        assert key_of(function) is None
    assert key_of(function) is not None
