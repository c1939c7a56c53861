"""`torch.cov` and `torch.corrcoef` without weights. Their kernels read the number of observations back from a tensor, though it is a size.

Functions of torch with the same steps are traced in their place (aten/src/ATen/native/Correlation.cpp), where that size is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from treadle_tracer.values.base import NONE, Constant, LazyValue
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def cov(input: torch.Tensor, *, correction: int = 1) -> torch.Tensor:
    """torch.cov"""
    rows = input.view(1, -1) if input.dim() < 2 else input
    count = torch.scalar_tensor(rows.shape[1], dtype=torch.int64, device=input.device)
    centred = rows - (rows.sum(1) / count).unsqueeze(1)
    return torch.true_divide(torch.mm(centred, centred.t().conj()), count - correction).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """torch.corrcoef"""
    found = cov(input)
    if found.dim() == 0:
        return found / found
    variance = found.diag()
    deviation = torch.sqrt(variance.real if found.is_complex() else variance)
    found = found / deviation.view(-1, 1) / deviation.view(1, -1)
    if found.is_complex():
        return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))
    return found.clip(-1, 1)


def _is_plain(args: Args, kwargs: Kwargs, names: frozenset[str]) -> bool:
    """Whether the number of observations is known, exceeds the correction, and is all that eager checks."""
    if len(args) != 1 or not kwargs.keys() <= names or not isinstance(args[0], TensorValue):
        return False
    fake, correction = args[0].fake, kwargs.get("correction", Constant(1))
    if fake.dim() > 2 or fake.dtype is torch.bool or not correction.is_constant():
        return False
    count = fake.shape[1] if fake.dim() == 2 else fake.numel()
    return type(count) is int and type(correction.constant()) is int and count > correction.constant()


def _replaced(name: str, substitute: object, names: frozenset[str]) -> Apply:
    function = getattr(torch, name)

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        args = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
        named = {key: value for key, value in kwargs.items() if value is not NONE}
        if _is_plain(args, named, names):
            return tx.inline(tx.wrap_known(substitute), args, named)
        return tx.run_in_graph("call_function", function, args, kwargs)

    return run


RULES = (
    Rule(torch.cov, _replaced("cov", cov, frozenset({"correction"})), Effect.GRAPH),
    Rule(torch.corrcoef, _replaced("corrcoef", corrcoef, frozenset()), Effect.GRAPH),
)
