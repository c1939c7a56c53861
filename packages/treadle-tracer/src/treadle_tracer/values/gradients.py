"""`tensor.grad`: an attribute of outside leaves, read under guards and written back after the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import AttrSource
from treadle_tracer.values.base import NONE
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.tensor import TensorValue
    from treadle_tracer.values.value import TraceContext


def read_grad(tx: TraceContext, owner: TensorValue) -> Value:
    """`owner.grad`, which the trace has not written. A guard checks that it is None, or the metadata of the tensor."""
    if owner.obj is None or owner.source is None:
        if owner.fake.is_leaf:
            return NONE  # made in the trace: nobody can have set it
        raise Unsupported("tensor-attribute", f".grad of {owner.describe()}")
    if not _may_have_grad(owner.obj):  # Python warns
        raise Unsupported("tensor-attribute", f".grad of {owner.describe()}, which is no leaf")
    return tx.wrap(owner.obj.grad, AttrSource(owner.source, "grad"))


def write_grad(tx: TraceContext, owner: TensorValue, value: Value) -> None:
    """`owner.grad = value`. Raises Unsupported for what PyTorch refuses, and for tensors that are made in the trace."""
    if owner.source is None or owner.obj is None or not _may_have_grad(owner.obj):
        raise Unsupported("tensor-attribute", f"assignment to .grad of {owner.describe()}")
    fake: Any = getattr(value, "fake", None)
    if value is not NONE and not (isinstance(fake, torch.Tensor) and _fits(owner.fake, fake)):
        raise Unsupported("tensor-attribute", f"{value.describe()} is assigned to .grad of {owner.describe()}")
    tx.mutations.store_attr(owner, "grad", value)


def _may_have_grad(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf or tensor.retains_grad


def _fits(owner: torch.Tensor, grad: torch.Tensor) -> bool:
    """Whether PyTorch takes `grad` as the gradient of `owner`, as far as this is asked without a guard."""
    same_kind = owner.dtype == grad.dtype and owner.device == grad.device and owner is not grad
    sizes = (*owner.shape, *grad.shape)
    return same_kind and all(type(size) is int for size in sizes) and owner.shape == grad.shape



