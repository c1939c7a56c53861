"""Programs that check their tensors and raise. (pytest rewrites the asserts of test modules, with addresses in their messages.)"""

from __future__ import annotations

import torch

X = torch.Tensor


def all_positive(x: X) -> X:
    if not (x > 0).all():
        raise ValueError(f"not positive: {tuple(x.shape)}")
    return x.log()


def any_negative(x: X) -> X:
    if (x < 0).any():
        raise ArithmeticError("negative")
    return x.sqrt() + 1


def is_all_true(x: X) -> X:
    if not torch._is_all_true(x > 0):
        raise ValueError("not all")
    return x + 1


def asserted(x: X) -> X:
    assert x.sum() > 0, "sum"
    return x * 2


def asserted_bool(x: X) -> X:
    assert torch.isfinite(x).all()
    return x.exp()


def two_bools(x: X) -> X:
    positive, finite = (x > -5).all(), torch.isfinite(x).all()
    if not positive:
        raise ValueError("first")
    if not finite:
        raise KeyError("second")
    return x - 1


def both(x: X) -> X:
    if (x < 0).any() and torch.isfinite(x).all():
        raise ValueError("both")
    return x - 1


def negated(x: X) -> X:
    wrong = (x < 0).any()
    if not wrong:
        return x + 1
    raise IndexError("wrong")


def item_of_bool(x: X) -> X:
    ok = bool((x > 0).all().item())
    if not ok:
        raise ValueError("item")
    return x * 3


def number(x: X) -> X:
    if x.max().item() > 100:
        raise OverflowError("large")
    return x / 2


def after_a_write(x: X) -> X:
    y = x.clone()
    y += 1
    if (y < 0).any():
        raise ValueError(f"{y.min().item():.1f}")
    return y


def inside_a_call(x: X) -> X:
    return all_positive(x + 0.5) + any_negative(x)


PROGRAMS = [
    all_positive,
    any_negative,
    is_all_true,
    asserted,
    asserted_bool,
    two_bools,
    both,
    negated,
    item_of_bool,
    number,
    after_a_write,
    inside_a_call,
]
