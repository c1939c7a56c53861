"""What cannot be compiled: graphs that have no functional form, and calls that torch refuses.

Torch's exceptions and our own bugs are told apart by type. Every call into torch goes through `call_torch`, which turns an exception of
torch into a `Refusal`. Any other exception of these types comes from our own code and is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from treadle_shapes import ShapesError

from .errors import InternalError, Refusal, UnsupportedGraph

# Torch-level calls after which tensors belong to autograd or have left the graph.
_UNSUPPORTED_METHODS = frozenset(
    {"requires_grad_", "backward", "retain_grad", "register_hook", "resize_", "set_", "numpy", "tolist"}
)

# Operators that return views although their schemas declare none. A write to such a view would be lost.
_UNDECLARED_VIEWS = frozenset({"unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"})

# Our own exceptions. They pass through torch's frames unchanged.
TYPED = (UnsupportedGraph, InternalError, ShapesError)

# Fake tensors raise these when a result depends on the values of a tensor.
_NEEDS_DATA = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

# Torch raises these for a call that has no kernel, or that always fails.
_REFUSES = (RuntimeError, IndexError, ValueError, OverflowError)


def why_not_functional(gm: fx.GraphModule) -> str | None:
    """Why the graph has no functional form, as far as its nodes alone tell."""
    for node in gm.graph.nodes:
        if node.op == "call_method" and node.target in _UNSUPPORTED_METHODS:
            return f"Tensor.{node.target}() has no functional form"
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        if name in _UNDECLARED_VIEWS:
            return f"{name} gives views that it does not declare"
        if node.op == "call_module":
            return f"call_module nodes ({node.target}) are not part of the contract"
    return None


def call_torch(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], line: Callable[[], str]
) -> Any:
    """``function(*args, **kwargs)``, a call into torch. `line` gives the user's line for the message of an error.

    Raises Refusal for what torch raises. Exceptions that come out of our own callbacks (`TYPED`) pass through.
    """
    try:
        return function(*args, **kwargs)
    except (*TYPED, RecursionError):  # a RecursionError is a RuntimeError
        raise
    except _NEEDS_DATA as error:
        raise Refusal(f"the values of a tensor are needed: {error}", line()) from error
    except _REFUSES as error:
        raise Refusal(f"torch has no functional form of an operator: {error}", line()) from error
