from __future__ import annotations

import pytest
import torch

from treadle_shapes.fake import fake_mode


@pytest.mark.parametrize("shape", [(1, 3), (1, 2, 1), (1, 2, 1, 1), (2, 3)])
def test_batch_norm_of_one_value_per_channel_has_a_fake_result(shape):
    mode = fake_mode()
    c = shape[1]

    def norm(x, mean, var):
        return torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)

    expected = norm(torch.ones(shape), torch.zeros(c), torch.ones(c))
    with mode:
        result = norm(torch.ones(shape), torch.zeros(c), torch.ones(c))
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())


@pytest.mark.parametrize("shape", [(1, 3), (2, 3)])
def test_the_decomposition_counts_nan_as_eager_does(shape):
    fake_mode()
    x, stats = torch.arange(3.0 * shape[0]).view(shape), (torch.zeros(3), torch.ones(3))
    decomposed = torch._decomp.decomposition_table[torch.ops.aten._native_batch_norm_legit_functional.default]
    mine = decomposed(x, None, None, *stats, True, 0.1, 1e-5)
    eager = torch.ops.aten._native_batch_norm_legit_functional(x, None, None, *stats, True, 0.1, 1e-5)
    for got, wanted in zip(mine, eager, strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)
