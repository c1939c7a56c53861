"""Training at sizes that change: operators whose kernels in C++ ask for sizes that are symbols or found while the graph runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import treadle


def halves(x):
    """Two parts of one tensor, both of them written: autograd makes the node of one anew, by calling the slice again."""
    y = 2 * x
    left, right = y[..., :4], y[..., 4:]
    left /= 3.0
    right /= 2.0
    return left, right


def half(x):
    return halves(x)[0]


def halves_and_whole(x):
    y = 2 * x
    left, right = y[..., :4], y[..., 4:].mT
    left /= 3.0
    right /= 2.0
    left *= 2
    return left, y, right


def bilinear(x):
    return F.interpolate(x[None, None].sin(), scale_factor=2.0, mode="bilinear")


def bicubic(x):
    return F.interpolate(x[None, None].sin(), size=(7, 9), mode="bicubic")


def linear(x):
    return F.interpolate(x[None].sin(), scale_factor=2.0, mode="linear", align_corners=True)


def padded(x):
    return F.pad(2 * x[x[:, 0] > 0], (1, 0)).sin()


def selected(x):
    return x.masked_select(x > 0.1).sin(), torch.masked_select(x * 2, x[:, :1] > 0), x[0].masked_select(x > -0.1)


def transformed_inside(x):
    """As in a spline with tails, which is computed only where there is something inside of the interval."""
    inside = x.abs() < 1
    out = torch.zeros_like(x)
    out[~inside] = x[~inside]
    if torch.any(inside):
        out[inside] = x[inside].sin() / (x[inside].max() + 2)
    return out


PROGRAMS = [halves, half, halves_and_whole, bilinear, bicubic, linear, padded, selected, transformed_inside]


def outputs_and_gradient(function, x):
    x = x.clone().requires_grad_()
    found = function(x)
    found = [found] if isinstance(found, torch.Tensor) else list(found)
    sum((part.sin() * part).sum() for part in found).backward()
    return [*(part.detach() for part in found), x.grad]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_gradients_at_sizes_that_change(function):
    torch.manual_seed(0)
    compiled = treadle.compile(function)
    with treadle.config.patch(leave_unprofitable=False):
        for n in (3, 5, 7, 6):
            x = torch.randn(n, 8)
            x[0] = x[0].abs()
            expected = outputs_and_gradient(function, x.double())
            for got, wanted in zip(outputs_and_gradient(compiled, x), expected, strict=True):
                torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
    assert treadle.stats().eager_graphs == ()
    assert treadle.stats().graphs == 2


def test_padding_without_gradients_requires_none_at_sizes_that_change():
    """PyTorch's fake kernel of padding makes a tensor that requires gradients as the padded one does, under no_grad as well."""

    def run(x):
        y = 2 * x
        with torch.no_grad():
            padded = F.pad(y, (0, 0, 0, 2))
            rest = padded[1:]
            rest.mul_(3)
        return y.sin(), padded, rest, padded.requires_grad

    compiled = treadle.compile(run, fullgraph=True)
    for n in (3, 5, 7):
        x = torch.randn(n, 8, requires_grad=True)
        for got, wanted in zip(compiled(x), run(x), strict=True):
            torch.testing.assert_close(got, wanted)
            assert isinstance(got, bool) or got.requires_grad == wanted.requires_grad
    assert treadle.stats().graphs == 2


def test_a_size_that_only_a_saved_tensor_follows_from():
    """Backward reads the convolution of `y`, of (n + 1) // 2 columns, and not `y`: a perceptual loss of an image that is fixed."""
    convolution = torch.nn.Conv2d(3, 4, 3, 2, 1).requires_grad_(False)

    def distance(x, y):
        a, b = convolution(x).relu(), convolution(y).relu()
        a = a / a.square().sum(1, keepdim=True).sqrt().add(1e-3)
        return (a - b).square().mean((2, 3)).sum()

    compiled = treadle.compile(distance)
    for batch, size in ((1, 8), (2, 8), (1, 16), (2, 11), (3, 12)):
        x = torch.rand(batch, 3, size, size, requires_grad=True)
        y = torch.rand(batch, 3, size, size)
        (got,) = torch.autograd.grad(compiled(x, y), x)
        (want,) = torch.autograd.grad(distance(x, y), x)
        torch.testing.assert_close(got, want)
