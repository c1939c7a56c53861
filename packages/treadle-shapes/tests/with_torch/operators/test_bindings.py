"""Which of torch's bindings stands for an operator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import binding_of, operator  # noqa: E402

aten = torch.ops.aten


def test_operators_with_one_overload_have_one() -> None:
    assert binding_of(aten.mv.default) is torch.mv
    assert binding_of(aten.embedding.default) is torch.embedding
    assert binding_of(aten.convolution.default) is torch.convolution
    assert binding_of(aten.nonzero.default) is torch.nonzero
    assert binding_of(aten.linalg_inv_ex.default) is torch.linalg.inv_ex
    assert binding_of(aten.gelu.default) is torch._C._nn.gelu


def test_a_declared_one_goes_first() -> None:
    for op in (aten.mm.default, aten.mm.out, aten._linalg_check_errors.default, aten._local_scalar_dense.default):
        assert binding_of(op) is operator(op).binding is not None


@pytest.mark.parametrize(
    "op", [aten.sum.default, aten.add.Tensor, aten.mv.out, aten.sort.stable, torch.sin, "relu"], ids=str
)
def test_others_have_none(op: object) -> None:
    assert binding_of(op) is None


@pytest.mark.parametrize("name", ["multi_margin_loss", "multilabel_margin_loss", "binary_cross_entropy", "mse_loss"])
def test_losses_have_none(name: str) -> None:
    assert binding_of(getattr(aten, name).default) is None


def test_the_bindings_of_losses_have_another_default() -> None:
    x, target = torch.rand(4, 5), torch.rand(4, 5)
    assert aten.binary_cross_entropy.default(x, target).shape == ()
    assert torch._C._nn.binary_cross_entropy(x, target).shape == x.shape


def test_results_are_those_of_the_operators() -> None:
    x = torch.randn(3, 4)
    for op, args in (
        (aten.mv.default, (x, x[0])),
        (aten.linalg_vector_norm.default, (x, 2, [1], True)),
        (aten.embedding.default, (x, torch.tensor([2, 0]))),
        (aten.constant_pad_nd.default, (x, [1, 2], 0.5)),
        (aten.gelu.default, (x,)),
        (aten._fft_r2c.default, (x, [1], 0, True)),
    ):
        binding = binding_of(op)
        assert binding is not None
        torch.testing.assert_close(binding(*args), op(*args), rtol=0, atol=0)
