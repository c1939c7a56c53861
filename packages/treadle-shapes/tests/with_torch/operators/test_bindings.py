"""Which of torch's bindings stands for an operator."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from treadle_shapes.torch import binding_of, binding_of_call, operator  # noqa: E402

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


@pytest.mark.parametrize(
    "x", [torch.arange(3.0).expand(3, 3), torch.arange(9.0).view(3, 3).t()], ids=["expanded", "dense"]
)
def test_parts_at_a_place_are_written_in_a_copy_of_all_elements(x: torch.Tensor) -> None:
    binding, arguments = binding_of(aten.as_strided_scatter.default), (x, torch.ones(2) * 7, (2,), (1,), 1)
    assert binding is not None
    result, expected = binding(*arguments), aten.as_strided_scatter.default(*arguments)
    assert torch.equal(result, expected) and result.stride() == expected.stride()


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


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CPU = {"device": torch.device("cpu"), "pin_memory": False}
CALLS = [
    (aten.randint.low, (0, 10, [4]), CPU, torch.int64, torch.randint),
    (aten.randn.default, ([4],), CPU, torch.float32, torch.randn),
    (aten.sort.stable, (meta(3, 4),), {"stable": True, "dim": 0}, None, torch.sort),
    (aten.max.dim, (meta(3, 4), 1), {}, None, torch.max),
    (aten.max.default, (meta(3, 4),), {}, None, torch.max),
    (aten.scatter.src, (meta(3), 0, meta(3, dtype=torch.int64), meta(3)), {}, None, torch.scatter),
]


@pytest.mark.parametrize("op, args, kwargs, dtype, binding", CALLS, ids=lambda value: str(value)[:30])
def test_a_binding_that_chooses_the_operator_for_a_call(op, args, kwargs, dtype, binding) -> None:  # type: ignore[no-untyped-def]
    for _ in range(2):
        assert binding_of_call(op, args, kwargs, dtype) is binding


@pytest.mark.parametrize(
    "op, args, kwargs, dtype",
    [
        (aten.add.Scalar, (meta(3), 1), {}, None),  # the binding adds a tensor
        (aten.max.dim, (meta(3, 4),), {}, None),
        (aten.mse_loss.default, (meta(3), meta(3)), {}, None),
        (aten.exponential.default, (meta(3),), {}, None),
    ],
    ids=str,
)
def test_a_binding_that_chooses_another_operator_is_none(op, args, kwargs, dtype) -> None:  # type: ignore[no-untyped-def]
    assert binding_of_call(op, args, kwargs, dtype) is None


def test_nothing_is_drawn_to_see_what_a_binding_chooses() -> None:
    before = torch.get_rng_state()
    binding_of_call(aten.rand.default, ([5],), CPU, torch.float32)
    binding_of_call(aten.randperm.default, (7,), CPU, torch.int64)
    assert torch.equal(torch.get_rng_state(), before)


CHOOSE_WITHOUT_DYNAMO = """
import sys, torch
from treadle_shapes.torch import binding_of_call
assert binding_of_call(torch.ops.aten.sort.default, [torch.empty(3, device="meta")], {}) is torch.sort
assert "torch._dynamo" not in sys.modules
"""


def test_asking_a_binding_imports_no_other_compiler():
    subprocess.run([sys.executable, "-c", CHOOSE_WITHOUT_DYNAMO], check=True, timeout=120)
