"""Writes of one value under a mask: which are choices, and that these do what the write does."""

from __future__ import annotations

import operator

import pytest
import torch

from treadle_autograd.masked_writes import as_choice, choose, why_not_choice


@pytest.mark.parametrize(
    ("value", "mask"),
    [
        ((5,), (3, 4)),
        ((1, 5), (3, 4)),
        ((1,), (3, 4)),
        ((), (3, 4)),
        ((), (3, 4, 5)),
        ((1,), (3, 4, 5)),
        ((4, 5), (3,)),
        ((1, 1, 5), (3,)),
    ],
)
def test_a_choice_does_what_the_write_does(value, mask):
    torch.manual_seed(0)
    start, value = torch.randn(3, 4, 5, requires_grad=True), torch.randn(value, requires_grad=True)
    mask = torch.rand(mask) > 0.5
    found = []
    for write in (operator.setitem, as_choice(operator.setitem, (start, mask, value))):
        x = start * 2
        write(x, mask, value)
        found.append((x, *torch.autograd.grad(x.sin().sum(), (start, value))))
    assert as_choice(operator.setitem, (start, mask, value)) is choose
    for want, have in zip(*found, strict=True):
        torch.testing.assert_close(have, want)


def test_what_is_left_as_it_is():
    x, mask = torch.randn(3, 5), torch.tensor([True, False, True])
    leaf = lambda *size, **options: torch.randn(*size, **options).requires_grad_()  # noqa: E731
    assert "of its own" in str(why_not_choice(x, mask, leaf(2, 5)))
    assert "converted" in str(why_not_choice(x, mask, leaf(5, dtype=torch.float64)))
    assert "no gradient" in str(why_not_choice(x, mask, torch.randn(5)))
    assert "no tensor" in str(why_not_choice(x, mask.long(), leaf(5)))
    assert "no tensor" in str(why_not_choice(x, mask, 1.0))
    assert "one number" in str(why_not_choice(x, torch.tensor(True), leaf(5)))
    with torch.no_grad():
        assert "no gradient" in str(why_not_choice(x, mask, leaf(5)))
    assert as_choice(operator.add, (x, mask, leaf(5))) is operator.add
