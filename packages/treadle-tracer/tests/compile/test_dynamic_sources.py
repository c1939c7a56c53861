"""Which sizes become symbols, how strides follow, and which sizes of 1 a guard accepts."""

from __future__ import annotations

import pytest
import torch

from treadle_tracer import Mark, TracerOptions, set_mark
from treadle_tracer.dynamic import (
    Chain,
    DynamicSizes,
    DynamicSources,
    SizesGuard,
    hints_of,
    is_small_integer,
    stride_rules,
    strides_by,
)
from treadle_tracer.source import LocalSource

X = LocalSource("x")


def hints(tensor, known=None, **options):
    return hints_of(tensor, X, known if known is not None else DynamicSources(), TracerOptions(**options))


def test_a_dimension_is_dynamic_when_it_has_changed_or_the_option_says_so():
    x = torch.ones(3, 4)
    assert hints(x) == {}
    assert hints(x, DynamicSources({X: {1: 9}})) == {1: 4}
    assert hints(x, dynamic=True) == {0: 3, 1: 4}
    assert hints(torch.ones(3, 0), dynamic=True) == {0: 3}


def test_a_size_of_1_is_traced_with_a_larger_one():
    known = DynamicSources({X: {0: 7, 1: 0}})
    assert hints(torch.ones(1, 1), known) == {0: 7, 1: 2}
    assert known.has_generalised
    specialising = known.specialising_size_one()
    assert hints(torch.ones(1, 1), specialising) == {} and not specialising.has_generalised


def test_marks_come_first():
    x = torch.ones(3, 1)
    set_mark(x, 0, Mark("static"))
    set_mark(x, 1, Mark("dynamic", 1, 1))
    assert hints(x, DynamicSources({X: {0: 5}})) == {}
    set_mark(x, 1, Mark("dynamic", 4, 8))
    assert hints(x) == {1: 4}


def test_parameters_and_sparse_tensors_are_static():
    weight = torch.nn.Parameter(torch.ones(3))
    assert hints(weight, dynamic=True) == {}
    assert hints(weight, DynamicSources(inputs=[X]), dynamic=True) == {0: 3}
    assert hints(torch.eye(3).to_sparse(), dynamic=True) == {}


def test_numbers_are_the_sources_without_dimensions():
    known = DynamicSources({X: {0: 3}, LocalSource("n"): {}}, inputs=[X])
    assert known.numbers == {LocalSource("n")}
    fewer = known.without_numbers()
    assert fewer == {X: {0: 3}} and fewer.inputs == {X}


@pytest.mark.parametrize(
    ("tensor", "dims", "rules"),
    [
        (torch.ones(2, 3, 4), (1,), (Chain(1), Chain(2), 1)),
        (torch.ones(4, 3).t(), (0,), (1, Chain(0))),
        (torch.ones(1, 3).expand(4, 3), (0,), (0, 1)),
        (torch.ones(4, 10)[:, :6], (0,), (10, 1)),
        (torch.ones(4, 10)[:, :6], (1,), (None, 1)),
    ],
)
def test_strides_follow_rules(tensor, dims, rules):
    assert stride_rules(tensor, dims) == rules
    assert strides_by(rules, tensor.shape, lambda d: tensor.stride(d)) == list(tensor.stride())


def test_dynamic_sizes_in_python():
    check = DynamicSizes((0,), stride_rules(torch.ones(4, 3), (0,)))
    assert check(torch.ones(9, 3)) and check(torch.ones(1, 3))
    assert not check(torch.ones(0, 3)) and not check(torch.ones(3, 9).t())


def test_a_guard_accepts_combinations_of_sizes_of_1():
    guard = SizesGuard(lambda n, m, k: n + m + k < 100, sizes=(0, 1))
    assert guard(2, 3, 1) and not guard(90, 10, 1)  # the third number is no size
    assert guard.positions_of_one((1, 3, 1)) == (0,) and not guard(1, 3, 1)
    guard.accept((0,))
    assert guard(1, 3, 1) and not guard(1, 1, 1) and not guard(1, 99, 1)
    assert guard.may_be_one(0) and not guard.may_be_one(1) and guard.accepts_each_alone
    guard.accept((0, 1))
    assert guard(1, 1, 1) and not guard.accepts_each_alone
    guard.accept((1,))
    assert guard.accepts_each_alone


def test_everything_is_accepted_for_a_moment():
    guard = SizesGuard(lambda n: True, sizes=(0,))
    with guard.accepting_all():
        assert guard(1)
    assert not guard(1)


def test_integers_that_may_be_symbols():
    assert all(map(is_small_integer, (0, -(2**31), 2**31 - 1)))
    assert not any(map(is_small_integer, (2**31, -(2**31) - 1)))
