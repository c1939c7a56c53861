"""Nodes of autograd's graph, as `tensor.grad_fn` gives them: whether there is one, its name and class. The node itself is not known.

    if loss.grad_fn is not None: ...
    loss.grad_fn.name()             # "MeanBackward0", of a tensor that the trace has made

The graph computes its outputs with other nodes than eager, so a node that the program keeps, or looks into, breaks the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_shapes.torch import is_at_beginning
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant, Method
from treadle_tracer.values.tensor_queries import is_leaf
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class HistoryNode(Value):
    """The `grad_fn` of a tensor. node: the node of the fake tensor; None for a tensor that has got its history outside the trace."""

    __slots__ = ("made_at", "node", "tensor")

    def __init__(self, tensor: Any, node: Any, made_at: int):
        self.source = None
        self.tensor = tensor
        self.node = node
        self.made_at = made_at

    def python_type(self) -> type:
        if self.node is None:
            raise self._refusal()
        return type(self.node)

    def identity(self) -> Any:
        return self

    def is_constant(self) -> bool:
        return False

    def describe(self) -> str:
        return f"the grad_fn of {self.tensor.describe()}"

    def truth(self, tx: TraceContext) -> bool:
        return True

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "name" and self.node is not None:
            return Method(self, name, type(self.node).name)
        raise self._refusal()

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "name" and self.node is not None and not args and not kwargs:
            return Constant(self.node.name())
        raise self._refusal()

    def reconstruct(self, cg: Any) -> None:
        raise Unsupported("reconstruct", self.describe(), (), self.made_at)

    def _refusal(self) -> Unsupported:
        return Unsupported("tensor-attribute", f".grad_fn of {self.tensor.describe()}")


def read_history(tx: TraceContext, tensor: Any) -> Value:
    """`tensor.grad_fn`; of an outside tensor that requires gradients it is guarded whether it has one."""
    if tx.graph.records_anew:
        raise Unsupported("checkpoint", "use_reentrant=True, and the function asks for .grad_fn")
    try:
        node = tensor.fake.grad_fn
    except RuntimeError as error:  # a view that was made with gradients off, whose memory has been written to
        raise Unsupported("tensor-attribute", f".grad_fn of {tensor.describe()}: {error}") from error
    if node is None or is_at_beginning(tensor.fake):
        if not tensor.fake.requires_grad or is_leaf(tx, tensor):
            return NONE
        node = None
    return HistoryNode(tensor, node, tx.frames[0].at if tx.frames else -1)
