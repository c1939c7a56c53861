"""Numbers beside tensors of half precision: what eager rounds to the tensors' dtype is rounded, what it keeps is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)

import treadle

LOW = (torch.float16, torch.bfloat16)
LIMITS = (0.3, 0.1, 0.7, 1 / 3)
OF_A_NUMBER: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "comparison": lambda x, limit: (x > limit) * x,
    "equality": lambda x, limit: (x == limit) * x,
    "hard shrinking": F.hardshrink,
    "soft shrinking": F.softshrink,
    "threshold": lambda x, limit: F.threshold(x, limit, 0.0),
    "clamped": lambda x, limit: x.clamp(-limit, limit),
    "chosen": lambda x, limit: torch.where(x <= limit, x, -x),
}
OF_A_TENSOR = (torch.eq, torch.ne, torch.lt, torch.ge, torch.maximum, torch.add, torch.sub, torch.mul)


def around(limit: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([limit, -limit, torch.inf, 0.0, 1.0, -1.0, limit * 1.001, limit * 0.999, 2.5], dtype=dtype)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_numbers(name: str, dtype: torch.dtype) -> None:
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        for limit in LIMITS:
            function = lambda x, limit=limit: OF_A_NUMBER[name](x, limit)  # noqa: E731
            treadle.reset()
            outcomes = []
            for run in (function, treadle.compile(function)):
                x = around(limit, dtype).requires_grad_()
                result = run(x)
                result.backward(torch.arange(1.0, 10.0).to(dtype))
                outcomes.append((result.detach(), x.grad))
            torch.testing.assert_close(*outcomes, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("other", [torch.float32, torch.float64, *LOW])
@pytest.mark.parametrize("function", OF_A_TENSOR)
def test_tensors_without_dimensions(
    function: Callable[..., torch.Tensor], other: torch.dtype, dtype: torch.dtype
) -> None:
    with treadle.config.patch(raise_internal_errors=True, leave_unprofitable=False):
        for limit in LIMITS:
            x, number = around(limit, dtype), torch.tensor(limit, dtype=other)
            for arguments in ((x, number), (number, x)):
                treadle.reset()
                found = treadle.compile(lambda a, b: function(a, b))(*arguments)
                torch.testing.assert_close(found, function(*arguments), rtol=0, atol=0, equal_nan=True)
