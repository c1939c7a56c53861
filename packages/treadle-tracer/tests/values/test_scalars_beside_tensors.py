"""Scalars of NumPy that the trace computes, beside tensors of torch: numbers, as eager takes them."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy", "2.0")


def integrated(x, scale):
    """As samplers integrate over levels of noise that NumPy holds."""
    for level in np.linspace(1, 0, 4):
        x = x - level * scale * x.sin()
    return x


def weighted(x, scale):
    total = x
    for n in np.arange(3):
        total = total + x[n] * n
    return total


def in_place(x, scale):
    y = x.clone()
    y *= np.linspace(0, 1, 5)[2]
    y += np.array([scale, 1.0]).sum()
    return y


PROGRAMS = {
    "integrated": integrated,
    "weighted": weighted,
    "in place": in_place,
    "both sides": lambda x, scale: (np.array([scale]).sum() - x, x / np.array([scale]).sum(), np.arange(3)[1] + x),
    "no dimensions": lambda x, scale: np.linspace(0, 1, 5)[1] * x.sum() + x.sum() * np.arange(3)[2],
    "float32": lambda x, scale: x * np.linspace(0, 1, 5, dtype=np.float32)[3],
    "integers": lambda x, scale: (x > 0).long() * np.arange(5)[3] + (x > 0).long() * np.linspace(0, 1, 3)[1],
    "16 bits": lambda x, scale: x.bfloat16() * np.linspace(0, 1, 5)[1] + np.array([scale]).sum(),
    "gradients": lambda x, scale: torch.autograd.grad((x.requires_grad_() * np.linspace(0, 1, 5)[3]).sum(), x)[0],
}
ANEW = {
    "a function": lambda x, scale: x / np.exp(scale),
    "two functions": lambda x, scale: x * np.cos(np.deg2rad(scale)) - x.flip(0) * np.sin(np.deg2rad(scale)),
    "of two numbers": lambda x, scale: x * np.hypot(scale, 2.0),
}


def compare(found, expected):
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
        return
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", {**PROGRAMS, **ANEW})
def test_one_graph(name):
    program = {**PROGRAMS, **ANEW}[name]
    fast, said = compiled(program, fullgraph=True)
    for scale in (0.5, 0.75, 0.25, 0.6, 0.9, -0.125):
        compare(fast(torch.arange(-3.0, 3.0), scale), program(torch.arange(-3.0, 3.0), scale))
    assert len(said.graphs) <= 3


@pytest.mark.parametrize("name", ANEW)
def test_what_numpy_computes_is_numpys_to_the_last_bit(name):
    fast, _ = compiled(ANEW[name], fullgraph=True)
    x = torch.ones(2, dtype=torch.float64)
    for scale in np.random.RandomState(0).rand(12):
        assert torch.equal(fast(x, float(scale)), ANEW[name](x, float(scale)))


def test_numpy_warns_as_in_eager():
    def f(x, scale):
        return x * np.log(scale)

    fast, _ = compiled(f)
    for scale in (1.0, 2.0, 3.0, 4.0):
        compare(fast(torch.ones(2), scale), f(torch.ones(2), scale))
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        assert torch.equal(fast(torch.ones(2), 0.0), torch.full((2,), -torch.inf))


@pytest.mark.parametrize("text", ("**", "//", "%", "<", "=="))
def test_other_operators_are_left_to_python(text):
    scope = {}
    exec(f"def f(x, numbers):\n    return x + 1, x {text} numbers.sum()", scope)
    fast, _ = compiled(scope["f"])
    for k in range(3):
        compare(fast(torch.ones(3), np.array([k, 1.5])), scope["f"](torch.ones(3), np.array([k, 1.5])))
