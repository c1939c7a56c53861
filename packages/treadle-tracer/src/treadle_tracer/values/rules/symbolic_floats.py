"""Rules of torch functions that take a float as a plain number, for calls with a symbolic float.

Such a call is traced as a formula in which the float is an operand. Without the formula every new value of the float would be a
compile. The formulas are those of PyTorch's documentation. They serve float32 and float64, where they differ from the kernels by
rounding only. Every other call is made as it is, which turns the float into a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from treadle_tracer.values.base import NONE
from treadle_tracer.values.rules import attention
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule, in_graph
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_FLOATS = frozenset({torch.float32, torch.float64})


def _require(holds: bool) -> None:
    """Raise where the formula would broadcast sizes that the kernel refuses. Python then calls the kernel, which raises its own error."""
    if not holds:
        raise RuntimeError("sizes that do not belong together")


def _require_parameters(shape: Any, *parameters: Any) -> None:
    for parameter in parameters:
        _require(parameter is None or list(parameter.shape) == list(shape))


def layer_norm(
    input: torch.Tensor,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> torch.Tensor:
    """torch.layer_norm"""
    _require(len(normalized_shape) > 0 and list(input.shape[-len(normalized_shape) :]) == list(normalized_shape))
    _require_parameters(normalized_shape, weight, bias)
    var, mean = torch.var_mean(input, tuple(range(-len(normalized_shape), 0)), correction=0, keepdim=True)
    out = (input - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias


def rms_norm(input: torch.Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> torch.Tensor:
    """torch.rms_norm"""
    _require(len(normalized_shape) > 0 and list(input.shape[-len(normalized_shape) :]) == list(normalized_shape))
    _require_parameters(normalized_shape, weight)
    mean = (input * input).mean(tuple(range(-len(normalized_shape), 0)), keepdim=True)
    out = input * torch.rsqrt(mean + eps)
    return out if weight is None else out * weight


def group_norm(
    input: torch.Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> torch.Tensor:
    """torch.nn.functional.group_norm"""
    _require(input.dim() > 1 and input.shape[1] % num_groups == 0)
    _require_parameters((input.shape[1],), weight, bias)
    grouped = input.reshape(input.shape[0], num_groups, -1)
    var, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    out = ((grouped - mean) * torch.rsqrt(var + eps)).reshape(input.shape)
    shape = [-1, *[1] * (input.dim() - 2)]
    if weight is not None:
        out = out * weight.view(shape)
    return out if bias is None else out + bias.view(shape)


def add(input: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    """torch.add"""
    return input + other * alpha  # type: ignore[no-any-return]


def sub(input: Any, other: Any, *, alpha: Any = 1) -> torch.Tensor:
    """torch.sub"""
    return input - other * alpha  # type: ignore[no-any-return]


def lerp(input: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    """torch.lerp with a number as weight"""
    return torch.lerp(input, end, torch.scalar_tensor(weight, dtype=input.dtype, device=input.device))


def no_dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """torch.nn.functional.dropout outside of training"""
    if p < 0.0 or p > 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return input


def scaled_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention with a scale"""
    return F.scaled_dot_product_attention(
        query * scale, key, value, attn_mask, dropout_p, is_causal, scale=1.0, enable_gqa=enable_gqa
    )


def _is_float(value: Value) -> bool:
    return isinstance(value, SymbolicValue) and value.python_type() is float


def _are_plain(named: dict[str, Value]) -> bool:
    """Whether all tensors but masks are float32, or all are float64. Kernels of mixed dtypes convert where the formula does not."""
    dtypes = {value.fake.dtype for value in named.values() if isinstance(value, TensorValue)} - {torch.bool}
    return len(dtypes) == 1 and dtypes <= _FLOATS


def _with_symbolic(wrapped: Rule, name: str, substitute: Callable[..., Any], only_unbacked: bool = False) -> Rule:
    """Trace `substitute` where the argument `name` is a symbolic float, and apply the wrapped rule otherwise.

    only_unbacked: the wrapped rule takes symbols of the caller's numbers.
    """
    code = substitute.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        fits = len(args) <= code.co_argcount and named.keys() <= set(names) and _is_float(named.get(name, NONE))
        if fits and substitute is no_dropout:
            train = named.get("training", NONE)
            fits = train.is_constant() and train.constant() is False
        elif fits:
            fits = _are_plain(named) and (not only_unbacked or is_unbacked(tx, named[name]))
        return tx.inline(tx.wrap_known(substitute), args, kwargs) if fits else wrapped.apply(tx, args, kwargs)

    return Rule(wrapped.function, run, Effect.GRAPH, wraps=wrapped)


RULES = (
    *[_with_symbolic(in_graph(function), "eps", layer_norm) for function in (torch.layer_norm, F.layer_norm)],
    *[_with_symbolic(in_graph(function), "eps", rms_norm) for function in (torch.rms_norm, F.rms_norm)],
    _with_symbolic(in_graph(F.group_norm), "eps", group_norm),
    _with_symbolic(in_graph(torch.add), "alpha", add, only_unbacked=True),
    _with_symbolic(in_graph(torch.sub), "alpha", sub),
    _with_symbolic(in_graph(torch.lerp), "weight", lerp),
    _with_symbolic(in_graph(F.dropout), "p", no_dropout),
    _with_symbolic(attention.RULE, "scale", scaled_attention),
)
