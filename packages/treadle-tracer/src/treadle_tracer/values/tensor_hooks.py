"""`tensor.register_hook(hook)` of a tensor that the trace has made: an identity whose gradient the hook changes.

    h.register_hook(lambda g: g * 0.5)     =>     h = Hooked.apply(h, hook)      everything that uses `h` from here on uses this
    loss = f(h)

Eager calls the hook with the sum of all gradients of `h`, so nothing may have used `h` before, and `h` itself does not leave the graph.
What the hook does is traced like the `backward` of a custom autograd function, with the same limits: a hook that writes to something
outside breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext


class Hooked(torch.autograd.Function):
    """The identity; `hook(gradient)` gives its gradient, or None for the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, hook: Any) -> torch.Tensor:  # type: ignore[override]
        ctx.hook = hook
        return tensor.clone()  # a view could not be written to afterwards

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        changed = ctx.hook(gradient)
        return (gradient if changed is None else changed), None


class HookHandle(Value):
    """What `register_hook` returns. The trace cannot remove the hook again, nor hand the handle on."""

    __slots__ = ()

    def __init__(self) -> None:
        self.source = None

    def python_type(self) -> type:
        return RemovableHandle

    def describe(self) -> str:
        return "the handle of a tensor's hook"

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        raise Unsupported("tensor-method", f".{name} of {self.describe()}")

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", self.describe())


def register_hook(tx: TraceContext, owner: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`owner.register_hook(hook)`"""
    why_not = why_not_hook(owner) if len(args) == 1 and not kwargs else "with these arguments"
    if why_not is not None:
        raise Unsupported("tensor-method", f"register_hook of {owner.describe()}: {why_not}")
    hooked = tx.wrap_known(Hooked).get_attr(tx, "apply").call(tx, [owner, args[0]], {})
    assert isinstance(hooked, TensorValue)
    owner.follow(tx, hooked.node(tx))
    owner.hooked_at = tx.frames[0].at
    return HookHandle()


def why_not_hook(owner: TensorValue) -> str | None:
    """Why a hook of this tensor cannot be a part of the graph, or None."""
    node = owner.known_node
    if type(owner) is not TensorValue or owner.source is not None or node is None:
        return "it comes from outside"
    if not owner.fake.requires_grad or owner.fake.is_leaf or not torch.is_grad_enabled():
        return "it is a leaf, or no gradients are recorded"
    if owner.hooked_at >= 0:  # of several hooks the first one is called first
        return "it has a hook"
    if any(map(_gives_gradient, node.users)):
        return "it has been used before"
    return None


def _gives_gradient(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(part, torch.Tensor) and part.requires_grad for part in parts)
