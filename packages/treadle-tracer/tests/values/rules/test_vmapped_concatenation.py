"""Concatenations inside vmap, whose batching rule reads sizes as plain numbers: one trace serves all sizes."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch.func import grad, vmap

from treadle_tracer.values.rules.vmapped_concatenation import concatenate_members


def of_both_kinds(w, x):
    return vmap(lambda w, x: torch.cat([x * w, x, (x + w)[:, :2]], -1), (0, None))(w, x)


def by_other_names(w, x):
    return vmap(lambda w, x: torch.concat((x, x * w), dim=0) + torch.concatenate([x * w, x]), (0, None), 1)(w, x)


def in_two_levels(w, x):
    inner = vmap(lambda row, w: torch.cat([row * w, row, w[None]]), (0, None))
    return vmap(lambda w, x: torch.cat([inner(x, w), inner(x, w * 2)], -2), (0, None))(w, x)


def with_gradients_inside(w, x):
    return vmap(lambda w, x: grad(lambda w: torch.cat([x * w, x.sin() * w * w], -1).square().sum())(w), (0, None))(w, x)


def gradients_of_a_vmap(w, x):
    return grad(lambda x: vmap(lambda w: torch.cat([x * w, x], 0).square())(w).sum())(x)


def along_the_batched_dimension(w, x):
    return vmap(lambda column, x: torch.cat([column, x[:, 0], column]), (1, None), 1)(x, x * w.sum())


@pytest.mark.parametrize(
    "program",
    [
        of_both_kinds,
        by_other_names,
        in_two_levels,
        with_gradients_inside,
        gradients_of_a_vmap,
        along_the_batched_dimension,
    ],
)
def test_values_and_number_of_traces(program):
    run, seen = compiled(program)
    for size in (7, 7, 5, 9, 12, 3):
        w, x = torch.randn(2), torch.randn(size, 4)
        found, expected = run(w, x), program(w, x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    if "gradients" not in program.__name__:
        assert len(seen.graphs) == 2


@pytest.mark.parametrize("dims", [(0, None, 1), (None, 1, None), (2, 2, 2), (1, 0, None)])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_what_it_computes_is_what_cat_computes(dims, dim):
    tensors = [torch.randn(3, 3, 3) if d is not None else torch.randn(3, 3) for d in dims]
    found = vmap(lambda *t: concatenate_members(t, dim), dims)(*tensors)
    expected = vmap(lambda *t: torch.cat(t, dim), dims)(*tensors)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_what_cat_refuses_is_refused():
    def program(w, x):
        return vmap(lambda w, x: torch.cat([x * w, x.T], 0), (0, None))(w, x)

    run, _ = compiled(program)
    for size in (4, 4, 5, 6):
        w, x = torch.randn(2), torch.randn(size, 4)
        if size == 4:
            torch.testing.assert_close(run(w, x), program(w, x))
            continue
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            run(w, x)
