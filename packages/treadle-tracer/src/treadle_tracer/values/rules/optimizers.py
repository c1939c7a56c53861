"""Rules of the helpers of `torch.optim`.

Under `torch.compiler.is_compiling()` the helpers keep numbers in tensors of 32 bits, where eager's optimizers compute in Python's floats:
`1 - 0.999 ** step` then has four correct digits at the first step. So the trace reads the numbers, as eager does; they stay symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_tracer.values import tensor_numbers
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def _get_value(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`x.item()` of a tensor, else x."""
    value = args[0] if args else kwargs["x"]
    value = value.force(tx) if isinstance(value, LazyValue) else value
    return tensor_numbers.read_number(tx, value) if isinstance(value, TensorValue) else value


def _as_it_is(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return args[0] if args else kwargs["x"]


RULES = (
    Rule("torch.optim.optimizer._get_value", _get_value, Effect.GRAPH),
    Rule("torch.optim.optimizer._stack_if_compiling", _as_it_is, Effect.NONE),
)
