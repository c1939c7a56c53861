"""`tensor.grad` and `tensor.requires_grad`: attributes that are read under guards and written back after the graph.

An `owner` is a TensorValue of `values.tensor`, which imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes import Eq
from treadle_shapes.torch import raw_expr
from treadle_tracer.below_autograd import refuse_below_autograd
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import AttrSource
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def read_grad(tx: TraceContext, owner: Any) -> Value:
    """`owner.grad`, which the trace has not written. A guard checks that it is None, or the metadata of the tensor."""
    if owner.obj is None or owner.source is None:
        if owner.fake.is_leaf:
            return NONE  # made in the trace: nobody can have set it
        raise Unsupported("tensor-attribute", f".grad of {owner.describe()}")
    if not _may_have_grad(owner.obj):  # Python warns
        raise Unsupported("tensor-attribute", f".grad of {owner.describe()}, which is no leaf")
    return tx.wrap(owner.obj.grad, AttrSource(owner.source, "grad"))


def write_grad(tx: TraceContext, owner: Any, value: Value) -> None:
    """`owner.grad = value`. Raises Unsupported for what PyTorch refuses."""
    if not _may_have_grad(owner.fake if owner.obj is None else owner.obj):
        raise Unsupported("tensor-attribute", f"assignment to .grad of {owner.describe()}")
    fake: Any = getattr(value, "fake", None)
    if value is not NONE and not (isinstance(fake, torch.Tensor) and _fits(tx, owner.fake, fake)):
        raise Unsupported("tensor-attribute", f"{value.describe()} is assigned to .grad of {owner.describe()}")
    tx.mutations.store_attr(owner, "grad", value)


def set_requires_grad(tx: TraceContext, owner: Any, value: Value) -> None:
    """`owner.requires_grad_(value)`, of a leaf. What PyTorch refuses breaks the graph."""
    wanted = bool(value.constant())
    if wanted == owner.fake.requires_grad:
        return
    refuse_below_autograd(owner.describe())
    if owner.obj is not None and not owner.obj.is_leaf:
        raise Unsupported("tensor-method", f"requires_grad_ of {owner.describe()}, which is no leaf")
    tx.run_in_graph("call_method", "requires_grad_", [owner, Constant(wanted)], {})
    owner.leaf_made_at = tx.frames[0].at
    if owner.source is not None:
        tx.mutations.store_attr(owner, "requires_grad", Constant(wanted))


def _may_have_grad(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf or tensor.retains_grad


def _fits(tx: TraceContext, owner: torch.Tensor, grad: torch.Tensor) -> bool:
    """Whether PyTorch takes `grad` as the gradient of `owner`. What it asks of symbolic sizes is guarded, or checked by the graph."""
    if owner.dtype != grad.dtype or owner.device != grad.device or owner is grad or owner.dim() != grad.dim():
        return False
    return all(_are_equal(tx, a, b) for a, b in zip(owner.shape, grad.shape, strict=True))


def _are_equal(tx: TraceContext, size: Any, other: Any) -> bool:
    one, two = raw_expr(size), raw_expr(other)
    if one == two or (isinstance(size, int) and isinstance(other, int)):
        return one == two
    env = tx.symbols.env
    if not (env.is_unbacked(one) or env.is_unbacked(two)):
        return bool(size == other)
    known = env.prove(Eq(one, two))
    if known is None:
        tx.symbols.unbacked.state(tx, Eq(one, two), "")
    return known is not False
