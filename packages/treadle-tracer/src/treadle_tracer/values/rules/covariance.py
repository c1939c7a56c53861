"""`torch.cov` and `torch.corrcoef`. Their kernels read the number of observations, and what they ask of the weights, back from tensors.

Functions of torch with the same steps are traced in their place (aten/src/ATen/native/Correlation.cpp). What eager refuses or warns of is
asserted: where it is so, Python runs the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.values.base import NONE, Constant, LazyValue
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """torch.cov"""
    rows = input.view(1, -1) if input.dim() < 2 else input
    if fweights is None and aweights is None:
        torch._check(rows.shape[1] > correction)
        count = torch.scalar_tensor(rows.shape[1], dtype=torch.int64, device=input.device)
        centred = rows - (rows.sum(1) / count).unsqueeze(1)
        return torch.true_divide(torch.mm(centred, centred.t().conj()), count - correction).squeeze()
    for given in (fweights, aweights):
        if given is not None:
            torch._check(bool((given >= 0).all()))
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    total = weights.sum()
    torch._check(bool(total != 0))
    degrees = total - correction
    if aweights is not None and correction != 0:
        degrees = total - correction * (weights * aweights).sum() / total
    torch._check(bool(degrees > 0))
    centred = rows - ((rows * weights).sum(1) / total).unsqueeze(1)
    return torch.true_divide(torch.mm(centred, (centred * weights).t().conj()), degrees).squeeze()


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


def _is_plain(tx: TraceContext, args: Args, kwargs: Kwargs, names: frozenset[str]) -> bool:
    """Whether eager takes the arguments, as far as sizes and dtypes tell, and warns of nothing."""
    if len(args) != 1 or not kwargs.keys() <= names or not isinstance(args[0], TensorValue):
        return False
    fake, correction = args[0].fake, kwargs.get("correction", Constant(1))
    if fake.dim() > 2 or fake.dtype is torch.bool or not correction.is_constant():
        return False
    count = fake.shape[1] if fake.dim() == 2 else fake.numel()
    if type(correction.constant()) is not int or (type(count) is int and count <= correction.constant()):
        return False
    weights = [(name, kwargs[name]) for name in ("fweights", "aweights") if name in kwargs]
    if not tx.symbols.captures and (weights or type(count) is not int):
        return False
    return all(_are_weights(weight, name == "aweights", count) for name, weight in weights)


def _are_weights(value: Value, are_floats: bool, count: Any) -> bool:
    if not isinstance(value, TensorValue) or value.fake.dim() != 1 or type(count) is not int:
        return False
    dtype = value.fake.dtype
    is_right = dtype.is_floating_point if are_floats else dtype in (torch.int64, torch.int32)
    return is_right and value.fake.shape[0] == count and value.fake.device.type == "cpu"


def _replaced(name: str, substitute: object, names: frozenset[str]) -> Apply:
    function = getattr(torch, name)

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        args = [arg.force(tx) if isinstance(arg, LazyValue) else arg for arg in args]
        named = {key: value for key, value in kwargs.items() if value is not NONE}
        named = {key: value.force(tx) if isinstance(value, LazyValue) else value for key, value in named.items()}
        if _is_plain(tx, args, named, names):
            return tx.inline(tx.wrap_known(substitute), args, named)
        return tx.run_in_graph("call_function", function, args, kwargs)

    return run


RULES = (
    Rule(torch.cov, _replaced("cov", cov, frozenset({"correction", "fweights", "aweights"})), Effect.GRAPH),
    Rule(torch.corrcoef, _replaced("corrcoef", corrcoef, frozenset()), Effect.GRAPH),
)
