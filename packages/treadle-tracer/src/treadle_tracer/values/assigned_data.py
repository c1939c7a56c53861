"""`tensor.data = other`: the object has the elements of another tensor, and shares their memory.

    weight.data = weight.data * 0.5      # a leaf from outside: assigned behind the graph
    y.data = x + 5                       # a tensor of the graph: it stands for another node from here on

Both are a TensorValue of `values.tensor`, which imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import is_transforming
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.call_effects import storages

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext


def assign_data(tx: TraceContext, owner: Any, value: Any) -> None:
    """Carry out the assignment. Raises Unsupported where the graph cannot."""
    if _is_own_memory(owner, value):
        return
    if owner.source is None:
        why_not = _why_not_stand_for(tx, owner, value)
    else:
        why_not = _why_not_take(owner, value)
    if why_not is not None:
        raise Unsupported("tensor-attribute", f"assignment to .data {why_not}")
    if owner.source is None:
        tx.mutations.begin_write()
        # Unlike `detach()`, `.data` has a version counter of its own, as the owner keeps its own.
        taken: Any = tx.run_in_graph("call_function", getattr, [value, Constant("data")], {})
        owner.stand_for(tx, taken.node(tx), taken.fake)
        tx.adopt(owner)
    else:
        taken = tx.run_in_graph("call_method", "detach", [value], {})
        tx.mutations.store_attr(owner, "data", taken)
        owner.data, owner.data_assigned_in = taken, len(tx.frames)


def _is_own_memory(owner: Any, value: Any) -> bool:
    """Whether a tensor gets what it has: `weight.data = weight.data.to(device)`, where it is there already."""
    mine, other = owner.fake, value.fake
    if owner.data is not None or mine.layout is not torch.strided or other.layout is not torch.strided:
        return False
    memory = storages(mine)
    if is_transforming() or mine.is_inference() or other.is_inference() or not memory or storages(other) != memory:
        return False
    kinds = [(t.dtype, t.device, t.is_conj(), t.is_neg(), t.dim()) for t in (mine, other)]
    if kinds[0] != kinds[1]:
        return False
    places = [(*t.shape, *t.stride(), t.storage_offset()) for t in (mine, other)]
    return all(type(n) is int for n in (*places[0], *places[1])) and places[0] == places[1]


def _why_not_stand_for(tx: TraceContext, owner: Any, value: Any) -> str | None:
    """Why a tensor of the graph cannot become another node, or None."""
    mine, other = owner.fake, value.fake
    node = owner.known_node
    if node is None or owner.hooked_at >= 0 or owner.kind is not torch.Tensor:
        return f"of {owner.describe()}, which is no plain tensor of the graph"
    if mine.requires_grad or mine._is_view() or mine.is_inference() or other.is_inference():
        return "of a view, or of a tensor that requires gradients or was made in inference mode"
    memory = storages(mine)
    others = [known for known in tx.known_tensors() if known is not owner and not _is_data_of(known, node)]
    if mine._version or any(storages(known.fake) & memory for known in others):
        return "of a tensor that has been written to or has views: it keeps their version counter"
    if mine.device != other.device or mine.layout != other.layout or other.is_conj() or other.is_neg():
        return "of a tensor of another kind"
    # Autograd saves the object itself, so that a backward pass finds the new elements.
    if any(_requires_grad(user.meta.get("example_value")) for user in node.users):
        return "of a tensor that autograd may have saved"
    return None


def _is_data_of(tensor: Any, node: fx.Node) -> bool:
    """Whether a tensor is `owner.data`, which counts its own writes, of the owner that the node gives."""
    made_by = tensor.known_node
    return made_by is not None and made_by.target is getattr and made_by.args == (node, "data")


def _requires_grad(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_requires_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


def _why_not_take(owner: Any, value: Any) -> str | None:
    """Why a graph cannot give an outside tensor the elements of another one, or None. Its metadata stay as they are."""
    if owner.obj is None or not owner.obj.is_leaf:
        return "of a tensor that is no leaf from outside"
    mine, other = owner.fake, value.fake
    sizes = (*mine.shape, *other.shape, *mine.stride(), *other.stride())
    if any(type(size) is not int for size in sizes) or mine.is_inference() or other.is_inference():
        return "under symbolic sizes, or of a tensor made in inference mode"
    same = mine.dtype == other.dtype and mine.device == other.device and mine.layout == other.layout
    same = same and mine.shape == other.shape and mine.stride() == other.stride()
    return None if same and not other.is_conj() and not other.is_neg() else "of other sizes, strides or another dtype"
