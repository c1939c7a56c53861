"""`torch.compile(function)` in a traced program, and regions marked for it: the function is traced into the same graph, as one that
has been compiled before is.

`trace_functions_compiled_by` gives another compiler, the one that calls this tracer, the same rule. A call of it with options is left to
Python, which checks them.

`torch.compile(module)` and the form without a function, which make objects, are left to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, LazyValue
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.rules.registered import REGISTERED
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value


def _compile(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return _function(tx, args[0] if args else kwargs.get("model", NONE), "torch.compile")


def _function(tx: TraceContext, model: Value, compiler: str) -> Value:
    model = model.force(tx) if isinstance(model, LazyValue) else model
    if not isinstance(model, FunctionValue):
        raise Unsupported("global-state", f"{compiler} of other objects than functions")
    return model


F = TypeVar("F", bound=Callable[..., Any])


def trace_functions_compiled_by(compiler: F) -> F:
    """Trace `compiler(function)(...)` in a program as a call of `function`. `compiler` takes the function as its first argument."""

    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 1 or kwargs:
            raise Unsupported("global-state", f"{compiler.__name__} with options")
        return _function(tx, args[0], compiler.__name__)

    REGISTERED[compiler] = Rule(compiler, apply, Effect.NONE)
    return compiler


def _region(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """What a function under `torch.compiler.nested_compile_region` calls, with that function as its first argument."""
    return args[0].call(tx, args[1:], kwargs)


RULES = (
    Rule(torch.compile, _compile, Effect.NONE),
    Rule("torch._higher_order_ops.invoke_subgraph.invoke_subgraph_placeholder", _region),
)
