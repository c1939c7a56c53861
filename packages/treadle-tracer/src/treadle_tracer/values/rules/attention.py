"""The rule of scaled_dot_product_attention with `is_causal` a condition on sizes.

The condition becomes the constant True or False where the result is the same for all sizes that make it the other one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from treadle_tracer.values.base import FALSE, NONE, TRUE, Constant
from treadle_tracer.values.joined import SymbolicBool
from treadle_tracer.values.rules.rule import Effect, Rule
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_attention = torch.nn.functional.scaled_dot_product_attention
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def attention(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of scaled_dot_product_attention in the graph."""
    named = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    causal = named.get("is_causal")
    if isinstance(causal, SymbolicBool):
        constant = _causal(tx, causal, named)
        position = _PARAMETERS.index("is_causal")
        if "is_causal" in kwargs:
            kwargs = {**kwargs, "is_causal": constant}
        else:
            args = [*args[:position], constant, *args[position + 1 :]]
    return tx.run_in_graph("call_function", _attention, args, kwargs)


def _causal(tx: TraceContext, causal: SymbolicBool, named: dict[str, Value]) -> Constant:
    """The constant to pass for `is_causal`. With one query and one key both give the same; otherwise the condition is decided."""
    from treadle_shapes import And, Eq, Not
    from treadle_shapes.torch import expr_of

    query, key, mask = named.get("query"), named.get("key"), named.get("attn_mask", NONE)
    if isinstance(query, TensorValue) and isinstance(key, TensorValue) and mask.is_constant():
        lengths = [expr_of(t.fake.shape[-2]) for t in (query, key) if t.fake.dim() >= 2]
        alone = And(*(Eq(length, 1) for length in lengths)) if len(lengths) == 2 and mask.constant() is None else False
        for condition, answer in ((Not(causal.condition), TRUE), (causal.condition, FALSE)):
            if tx.symbols.env.prove_under((condition,), alone):
                return answer
    return TRUE if causal.obj else FALSE


RULE = Rule(_attention, attention, Effect.GRAPH)
"""Wrapped by the rule for a symbolic scale in `values.rules.symbolic_floats`."""
