"""`round` and `divmod` of tensors."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


class Rounding(torch.Tensor):
    def __round__(self, digits=None):
        return self.as_subclass(torch.Tensor) + (digits or 7)


def message(value, *digits):
    try:
        return round(value, *digits)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("digits", [(), (1,)])
@pytest.mark.parametrize(
    "make", [torch.clone, torch.nn.Parameter, torch.Tensor.numpy, lambda x: x.as_subclass(Rounding)]
)
def test_tensors_are_rounded_where_their_class_says_how(make, digits):
    if make is torch.Tensor.numpy:
        pytest.importorskip("numpy")

    def function(x):
        return x * 2, message(make(x), *digits)

    fast, _ = compiled(function)
    got, want = fast(torch.tensor([2.5])), function(torch.tensor([2.5]))
    assert type(got[1]) is type(want[1])
    assert bool(got[1] == want[1])


def test_symbolic_floats_are_rounded():
    fast, _ = compiled(lambda x: x * round(x.shape[0] / 3, 1))
    for size in (2, 4, 5):
        assert torch.equal(fast(torch.ones(size)), torch.ones(size) * round(size / 3, 1))


@pytest.mark.parametrize("is_left", [True, False])
def test_tensors_have_no_divmod(is_left):
    def function(x, number):
        try:
            return divmod(x, number) if is_left else divmod(number, x)
        except TypeError as error:
            return x, str(error)

    fast, _ = compiled(function)
    for number in (2, 3, 0.5):
        assert fast(torch.ones(2), number)[1] == function(torch.ones(2), number)[1]
