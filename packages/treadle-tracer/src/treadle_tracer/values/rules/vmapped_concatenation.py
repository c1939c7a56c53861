"""`torch.cat` of tensors that vmap has batched, for all sizes: PyTorch's batching rule reads sizes as plain numbers (torch 2.13).

    torch.vmap(lambda w, x: torch.cat([x * w, x], -1), (0, None))(w, x)     body: `concatenate_members([%mul, %x], -1)`

The call takes the tensors out of the level, concatenates them there and puts the result back, as the batching rule does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from treadle_shapes.torch import unwrapped
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.rules.rule import Apply
    from treadle_tracer.values.value import TraceContext

_C = torch._C._functorch


def concatenate_members(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """`torch.cat(tensors, dim)` of tensors with the same number of dimensions."""
    batched = [tensor for tensor in tensors if _C.is_batchedtensor(tensor)]
    if not batched:
        return torch.cat(list(tensors), dim)
    level = max(map(_C.maybe_get_level, batched))
    first = next(tensor for tensor in batched if _C.maybe_get_level(tensor) == level)
    size = _C.get_unwrapped(first).shape[_C.maybe_get_bdim(first)]

    def physical(tensor: torch.Tensor) -> torch.Tensor:
        if _C.is_batchedtensor(tensor) and _C.maybe_get_level(tensor) == level:
            return _C.get_unwrapped(tensor).movedim(_C.maybe_get_bdim(tensor), 0)
        return tensor.unsqueeze(0).expand(size, *tensor.shape)

    found = concatenate_members([physical(tensor) for tensor in tensors], dim % first.dim() + 1)
    return _C._add_batch_dim(found, 0, level)  # type: ignore[no-any-return]


def _is_vmapped(tx: TraceContext, args: Args, kwargs: Kwargs) -> bool:
    """Whether the call concatenates batched tensors of symbolic sizes (of members, or their number), and is one that eager takes."""
    if _C.peek_interpreter_stack() is None or not args or not isinstance(args[0], (ListValue, TupleValue)):
        return False
    values = [item.force(tx) if isinstance(item, LazyValue) else item for item in args[0].unpack(tx)]
    dims = [*args[1:], *kwargs.values()]
    if not kwargs.keys() <= {"dim"} or len(dims) > 1 or not all(isinstance(value, TensorValue) for value in values):
        return False
    fakes = [value.fake for value in values]
    if not any(map(_C.is_batchedtensor, fakes)) or len({fake.dim() for fake in fakes}) != 1:
        return False
    dim, rank = (dims[0].constant() if dims and dims[0].is_constant() else 0 if not dims else None), fakes[0].dim()
    is_valid = type(dim) is int and rank > 0 and -rank <= dim < rank
    return is_valid and any(not isinstance(size, int) for fake in fakes for size in unwrapped(fake).shape)


def _rule(function: object) -> Apply:
    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        target = concatenate_members if _is_vmapped(tx, args, kwargs) else function
        return tx.run_in_graph("call_function", target, args, kwargs)  # type: ignore[arg-type]

    return run


RULES = tuple(
    Rule(function, _rule(function), Effect.GRAPH) for function in (torch.cat, torch.concat, torch.concatenate)
)
