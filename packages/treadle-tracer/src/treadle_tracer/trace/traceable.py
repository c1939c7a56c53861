"""Tensors that can be inputs of a graph."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import is_subtype, qualname_of


def why_not_traceable(obj: torch.Tensor) -> str | None:
    """Why a tensor object cannot be an input of a graph, or None."""
    if isinstance(obj, FakeTensor):
        return "a fake tensor"
    if not is_one_of(type(obj), (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)) and not _is_plain_subclass(
        type(obj)
    ):
        return f"a {qualname_of(type(obj))}, a subclass of Tensor"
    if obj.layout is not torch.strided:
        return f"of layout {obj.layout}"
    if obj.is_nested or obj.is_quantized:
        return "nested or quantised"
    if obj.is_conj() or obj.is_neg():
        return "a lazily conjugated or negated view"
    return _why_not_differentiable(obj)


def _why_not_differentiable(obj: torch.Tensor) -> str | None:
    """Why autograd refuses every use of a view, or None: it asks for the history anew once the base has been written to."""
    try:
        _ = obj.grad_fn
    except RuntimeError as error:
        return f"without a valid history: {error}"
    return None


def _is_plain_subclass(cls: type) -> bool:
    return is_subtype(cls, torch.nn.Parameter) and cls.__torch_function__ is torch._C._disabled_torch_function_impl
