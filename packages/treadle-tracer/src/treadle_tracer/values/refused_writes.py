"""Writes that PyTorch refuses when they run, and fake tensors do not: to a tensor whose elements share memory or that another argument
shares, to one that was made in inference mode, and to leaves and views of autograd's graph. The graph breaks in front of them, so that
what the program has done before is done when PyTorch raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes.torch import Kind, is_made_without_gradients, share_version_counter
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.values.call_effects import storages, written_arguments
from treadle_tracer.values.overlapping_memory import why_overlaps

if TYPE_CHECKING:
    from treadle_tracer.values.tensor import TensorValue
    from treadle_tracer.values.value import TraceContext


def why_not_run(tx: TraceContext, node: fx.Node) -> str | None:
    """Why PyTorch may refuse the call of a node, or None. What None relies on is guarded."""
    arguments = written_arguments(node)
    written = [argument.meta.get("example_value") for argument in arguments]
    record = operator_record(node.target)
    writes_elements = record is None or record.kind is not Kind.VIEW  # `t_` changes sizes and strides
    if writes_elements and any(map(_has_shared_elements, written)):
        return "it writes to an expanded tensor"
    if writes_elements and arguments and (overlap := why_overlaps(node, arguments)) is not None:
        return overlap
    made_in_inference_mode = tx.symbols.inference_storages
    if made_in_inference_mode and not torch.is_inference_mode_enabled():
        used = [argument.meta.get("example_value") for argument in node.all_input_nodes]
        touched = [*written, *used] if _requires_grad(node.meta.get("example_value")) else written
        if any(storages(value) & made_in_inference_mode for value in touched):
            return "a tensor made in inference mode is neither written to nor saved for a backward pass"
    if record is not None and record.changes_history_only:
        return None
    reasons = [why_not_write(tx, value) or _why_not_write_to_memory(tx, value) for value in written]
    return next(filter(None, reasons), None)


def why_not_write(tx: TraceContext, written: Any) -> str | None:
    """Why autograd refuses a write to this fake tensor, whose history the write has changed, or None. What None relies on is guarded.

    Fake tensors of outside tensors are views of nothing, so that they know what is a leaf and nothing about what is a view.
    """
    if not torch.is_grad_enabled() or not _requires_grad(written):
        return None
    if isinstance(written, (tuple, list)):
        return next(filter(None, (why_not_write(tx, item) for item in written)), None)
    # A view that the trace has made raises by itself where it is one of several, or was made in another grad mode. Everything else
    # that PyTorch asks about, it asks the base, and a view has inherited it. A detached tensor is no view.
    base: TensorValue | None = tx.tensor_of_fake(written._base if written._is_view() else written)  # type: ignore[arg-type]
    if base is not None and base.known_node is not None and is_made_without_gradients(base.known_node):
        return "autograd refuses to write to a view that was made without gradients"
    if base is None or base.obj is None or base.source is None:
        return None
    if refuses_writes(base.obj):
        return "autograd refuses to write to a leaf, to a view of one, and to a view that was made without gradients or as one of several"
    tx.guards.add(base.source, "call", accepts_writes, f"autograd lets {base.source.text} be written to")
    return None


def _why_not_write_to_memory(tx: TraceContext, written: Any) -> str | None:
    """Why autograd refuses an outside tensor behind a write to its memory, also one without gradients, or None. The rest is guarded."""
    for memory in storages(written) & tx.symbols.differentiable.keys():
        source, tensor, fake = tx.symbols.differentiable[memory]
        counts = not (written.is_inference() or fake.is_inference())  # inference tensors have no version
        if counts and not share_version_counter(written, fake):
            continue  # autograd does not see what is written to `x.data`
        if loses_history(tensor):
            return "autograd refuses a view that was made without gradients, or as one of several, once its memory has been written to"
        tx.guards.add(source, "call", keeps_history, f"autograd keeps the history of {source.text} behind a write")
    return None


def loses_history(tensor: torch.Tensor) -> bool:
    """Whether autograd cannot make the history of a tensor anew: of a view, it does so behind every write to the base."""
    if not tensor._is_view() or not tensor.requires_grad:
        return False
    return torch._C._autograd._get_creation_meta(tensor) != torch._C._autograd.CreationMeta.DEFAULT


def keeps_history(tensor: torch.Tensor) -> bool:
    """The guard on a tensor to whose memory a graph writes."""
    return not loses_history(tensor)


def refuses_writes(tensor: torch.Tensor) -> bool:
    """Whether autograd raises when grad mode is on and a write makes this tensor depend on one that requires a gradient.

    torch/csrc/autograd/VariableTypeUtils.h, check_inplace.
    """
    if not tensor._is_view():
        return tensor.requires_grad and tensor.is_leaf
    if torch._C._autograd._get_creation_meta(tensor) != torch._C._autograd.CreationMeta.DEFAULT:
        return True
    base = tensor._base
    return tensor.requires_grad and (tensor.is_leaf or base is None or base.is_leaf)


def accepts_writes(tensor: torch.Tensor) -> bool:
    """The guard on a tensor that a graph writes to."""
    return not refuses_writes(tensor)


def _has_shared_elements(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    layout = zip(value.shape, value.stride(), strict=True)
    return any(type(step) is int and step == 0 and (type(size) is not int or size > 1) for size, step in layout)


def _requires_grad(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_requires_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


__all__ = ["accepts_writes", "keeps_history", "loses_history", "refuses_writes", "why_not_run", "why_not_write"]
