"""Cross products of vectors are computed by generated kernels, as by PyTorch's."""

from __future__ import annotations

import pytest
import torch

import treadle

SHAPES = [
    ((7, 3), (7, 3), -1),
    ((3, 5), (3, 5), 0),
    ((2, 3, 4), (2, 3, 4), 1),
    ((1, 3), (7, 3), -1),
    ((4, 1, 3), (1, 5, 3), 2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64], ids=str)
@pytest.mark.parametrize("left, right, dim", SHAPES)
def test_values_strides_and_gradients(
    left: tuple[int, ...], right: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cross(a, b, dim=dim) + 1

    torch.manual_seed(0)
    a, b = ((5 * torch.randn(shape)).to(dtype) for shape in (left, right))
    compiled = treadle.compile(f)
    torch.testing.assert_close(compiled(a, b), f(a, b))
    assert compiled(a, b).stride() == f(a, b).stride()
    if not dtype.is_floating_point:
        return
    a.requires_grad_()
    b.requires_grad_()
    found, expected = (torch.autograd.grad(g(a, b).abs().sum(), (a, b)) for g in (compiled, f))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "left, right",
    [
        (torch.ones(3, 3), torch.ones(3, 3, dtype=torch.float64)),
        (torch.ones(3), torch.ones(2, 3)),
        (torch.ones(2, 4), torch.ones(2, 4)),
    ],
)
def test_what_eager_refuses_raises(left: torch.Tensor, right: torch.Tensor) -> None:
    compiled = treadle.compile(lambda a, b: torch.linalg.cross(a, b) + 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="expected scalar type|same number of dimensions|must have length 3"):
            compiled(left, right)
