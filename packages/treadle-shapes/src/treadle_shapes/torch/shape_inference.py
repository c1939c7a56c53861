"""Infers the result of a call on fake tensors from its shape function, without running a kernel. Needs torch.

infer(torch.nn.functional.linear, (x, weight, bias), {})     # Fresh(sizes=[b, s, 64], strides=[s*64, 64, 1], dtype=float32)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.torch.operators import operator
from treadle_shapes.torch.shape_functions import Alias, Fresh, NotAnswered


def infer(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Fresh | Alias | torch.Tensor | None:
    """Return the result of `target` (a function, or a method's name): a new tensor, a view, or an argument itself. None if unknown.

    The tensors among the arguments are plain strided FakeTensors with symbolic sizes of at least 1. With gradients enabled the answer is
    None for views and for results that require grad, because autograd has to record them; with gradients off for views of tensors that
    require grad, which autograd tells from other tensors.
    """
    if isinstance(target, torch._ops.OpOverload):
        return None  # the shape functions of overloads take layouts
    record = operator(target)
    formula = None if record is None else record.shape_functions.get(target)
    if formula is None:
        return None
    try:
        bound = _signature(formula).bind(*args, **kwargs)
    except TypeError:
        return None
    try:
        found = formula(*bound.args, **bound.kwargs)
    except NotAnswered:
        return None
    if isinstance(found, torch.Tensor):
        return found
    is_view = isinstance(found, Alias)
    if torch.is_grad_enabled() and is_view:
        return None
    if (torch.is_grad_enabled() or is_view) and any(t.requires_grad for t in _tensors((*args, *kwargs.values()))):
        return None
    return found


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among arguments and in their sequences, as `torch.cat` takes them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


_signature = functools.cache(inspect.signature)


__all__ = ["Alias", "Fresh", "infer"]
