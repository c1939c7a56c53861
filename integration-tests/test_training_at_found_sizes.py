"""Gradients of operators on rows that only the data can tell: one graph for all their numbers, and eager's gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)

import treadle

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom")
SCALE = torch.linspace(0.5, 1.5, 4)
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "asin": torch.asin,
    "asinh": torch.asinh,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "cumsum over them": lambda x: x.cumsum(0),
    "cumsum of each": lambda x: x.cumsum(-1),
    "cumprod of each": lambda x: x.cumprod(-1),
    "cumprod with zeros": lambda x: (x * torch.tensor([1.0, 0.0, 2.0, 0.0])).cumprod(-1),
    "logcumsumexp over them": lambda x: x.logcumsumexp(0),
    "logcumsumexp of each": lambda x: x.logcumsumexp(-1),
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "logaddexp": lambda x: torch.logaddexp(x, x * x),
    "power of a number": lambda x: 2**x,
    "rms norm": lambda x: F.rms_norm(x, (4,), SCALE),
    "hard shrinking": F.hardshrink,
    "logarithm of the sigmoid": F.logsigmoid,
    "losses of labels": lambda x: F.multilabel_soft_margin_loss(x, (x > 0).float(), reduction="none")[:, None],
    "sigmoid": torch.sigmoid,
    "sign": torch.sgn,
    "sign of complex numbers": lambda x: torch.complex(x, x * x).sgn().abs(),
    "soft shrinking": lambda x: F.softshrink(x, 0.3),
    "tan": torch.tan,
    "deviation over them": lambda x: x.std(0),
    "deviation of all": torch.std,
    "deviation of each": lambda x: x.std(-1, keepdim=True),
    "variance over them": lambda x: x.var(0),
    "variance of all": torch.var,
    "variance of all, biased": lambda x: x.var(correction=0),
    "mean and variance": lambda x: sum(torch.var_mean(x)),
    "mean and deviation": lambda x: sum(torch.std_mean(x)),
    "margins of classes": lambda x: F.multi_margin_loss(x, (x[:, 0] > 0).long(), weight=SCALE, reduction="sum"),
    "squared margins of classes": lambda x: F.multi_margin_loss(x, (x[:, 0] > 0).long(), p=2, reduction="none")[
        :, None
    ],
    "margins of labels": lambda x: F.multilabel_margin_loss(x, (x > 0).long(), reduction="sum"),
    "huber loss": lambda x: F.huber_loss(x, x.detach() + 1),
    "squared error": lambda x: F.mse_loss(x, x.detach() + 1),
}


@pytest.mark.parametrize("backend", ["codegen", "aot_eager"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name: str, backend: str) -> None:
    def program(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return (FUNCTIONS[name](x[kept]) * SCALE).sum()

    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        compiled = treadle.compile(program, fullgraph=True, backend=backend)
        for kept in ([1, 0, 1, 1, 0], [1] * 5, [0, 0, 0, 1, 0], [0] * 5):
            gradients = []
            for function in (compiled, program):
                x = torch.linspace(-0.9, 0.9, 20).view(5, 4).requires_grad_()
                function(x, torch.tensor(kept).bool()).backward()
                gradients.append(x.grad)
            torch.testing.assert_close(*gradients, equal_nan=True)
        assert treadle.stats().graphs == 1
        assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("correction", [1.5, 2, 7])
def test_more_corrections_than_items(correction: float) -> None:
    def program(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return x[kept].var(correction=correction)

    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        compiled = treadle.compile(program)
        for kept in ([1, 0, 1, 1, 0], [1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0] * 5):
            gradients = []
            for function in (compiled, program):
                x = torch.linspace(-0.9, 0.9, 5).requires_grad_()
                function(x, torch.tensor(kept).bool()).backward()
                gradients.append(x.grad)
            torch.testing.assert_close(*gradients, equal_nan=True)


LENGTHS = [0, 5, 1, 6, 7, 1]


@pytest.mark.parametrize("correction", [0, 1, 5])
def test_variances_of_as_many_items_as_corrections(correction: int) -> None:
    """Python divides no number by zero, the derivative formula does."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.var(0, correction=correction) + x.std(0, correction=correction)

    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        compiled = treadle.compile(program, fullgraph=True)
        for length in LENGTHS:
            gradients = []
            for function in (compiled, program):
                x = torch.linspace(-0.9, 0.9, 4 * length).view(length, 4).requires_grad_()
                function(x).sum().backward()
                gradients.append(x.grad)
            torch.testing.assert_close(*gradients, equal_nan=True)
        assert treadle.stats().eager_graphs == ()


@pytest.mark.parametrize("loss", [F.mse_loss, F.huber_loss, F.smooth_l1_loss, F.l1_loss])
def test_losses_of_no_elements(loss: Callable[..., torch.Tensor]) -> None:
    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        compiled = treadle.compile(lambda x: loss(x, x.detach() + 1))
        for length in LENGTHS:
            found, expected = (torch.linspace(-0.9, 0.9, 4 * length).requires_grad_() for _ in range(2))
            compiled(found).backward()
            loss(expected, expected.detach() + 1).backward()
            torch.testing.assert_close(found.grad, expected.grad)


def test_users_own_division_by_zero() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum() * (1.0 / (x.shape[0] - 1))

    treadle.reset()
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        compiled = treadle.compile(program)
        for length in (0, 5, 6):
            torch.testing.assert_close(compiled(torch.ones(length)), program(torch.ones(length)))
            with pytest.raises(ZeroDivisionError):
                compiled(torch.ones(1))
