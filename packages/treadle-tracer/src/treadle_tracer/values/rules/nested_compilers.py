"""`torch.compile(function)` in a traced program, and regions marked for it: the function is traced into the same graph, as one that
has been compiled before is.

`torch.compile(module)` and the form without a function, which make objects, are left to Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, LazyValue
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


def _compile(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    model = args[0] if args else kwargs.get("model", NONE)
    model = model.force(tx) if isinstance(model, LazyValue) else model
    if not isinstance(model, FunctionValue):
        raise Unsupported("global-state", "torch.compile of other objects than functions")
    return model


def _region(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """What a function under `torch.compiler.nested_compile_region` calls, with that function as its first argument."""
    return args[0].call(tx, args[1:], kwargs)


RULES = (
    Rule(torch.compile, _compile, Effect.NONE),
    Rule("torch._higher_order_ops.invoke_subgraph.invoke_subgraph_placeholder", _region),
)
