"""Functions whose kernels read sizes as plain numbers: one graph serves all sizes, with eager's results."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def frequencies(x):
    n = x.shape[0]
    return torch.fft.fftfreq(n), torch.fft.fftfreq(n, 1 / n, dtype=torch.float64), torch.fft.rfftfreq(n, d=2)


def products(x):
    return torch.kron(x, x[:, :1] + 1), torch.kron(x, x.t().contiguous())


def a_product_with_fewer_dimensions(x):
    return torch.kron(x, x[0])


def size_of_both(x):
    pair = torch.Size((3, 1, 1))
    return x.new_ones(torch._C._infer_size(x.shape[:1], pair)), x.new_ones(torch._C._infer_size(pair, x.shape))


SIZES = (4, 5, 7, 8, 6)


@pytest.mark.parametrize(
    "program",
    [frequencies, products, a_product_with_fewer_dimensions, size_of_both],
)
def test_results(program):
    fast, recorder = compiled(program)
    for size in SIZES:
        x = torch.randn(size, 3 if program is size_of_both else 2)
        for found, expected in zip([*fast(x)], [*program(x)], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            assert found.stride() == expected.stride()
    assert not recorder.breaks
    if not program.__name__.startswith("a_product"):
        assert len(recorder.graphs) == 2


def test_sizes_that_do_not_broadcast():
    def program(x):
        return x.new_ones(torch._C._infer_size(x.shape, torch.Size((3,))))

    fast, _ = compiled(program)
    messages = []
    for function in (fast, program):
        with pytest.raises(RuntimeError) as caught:
            function(torch.ones(2))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
