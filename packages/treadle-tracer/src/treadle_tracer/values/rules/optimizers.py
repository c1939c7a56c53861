"""Rules of the helpers of `torch.optim`.

Under `torch.compiler.is_compiling()` the helpers keep numbers in tensors of 32 bits, where eager's optimizers compute in Python's floats:
`1 - 0.999 ** step` then has four correct digits at the first step. So the trace reads the numbers, as eager does; they stay symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from treadle_tracer.class_facts import module_of, stands_in_its_module
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import tensor_numbers
from treadle_tracer.values.base import NONE, Constant, LazyValue
from treadle_tracer.values.constants import is_trusted_name
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


def _patch_step_function(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """The first optimizer of a class puts a wrapper around `step` of that class, for the profiler and for hooks.

    That is done now: it has no other effect, is done once in a process, and changes nothing that any other program sees.
    """
    (optimizer,) = args
    cls = optimizer.python_type()
    name = f"Optimizer.zero_grad#{cls.__name__}.zero_grad"
    optimizer.set_attr(tx, "_zero_grad_profile_name", Constant(name))
    if not getattr(cls.step, "hooked", None):
        if not (is_trusted_name(module_of(cls)) and stands_in_its_module(cls)):
            raise Unsupported("class-store", f"{cls.__qualname__}.step, which the first optimizer of a class wraps")
        cls.step = torch.optim.Optimizer.profile_hook_step(cls.step)
        cls.step.hooked = True
        tx.lookup_cache.clear()
    return NONE


RULES = (
    Rule(torch.optim.Optimizer._patch_step_function, _patch_step_function, Effect.WRITES_ARGUMENTS),
    Rule("torch.optim.optimizer._get_value", _get_value, Effect.GRAPH),
    Rule("torch.optim.optimizer._stack_if_compiling", _as_it_is, Effect.NONE),
)
