"""Tensors that the graph makes of tensors without dimensions. torch's constructors would read these as numbers.

torch.tensor([x.max(), n])          # torch.stack([x.max(), torch.full((), n)])
torch.tensor([i, 1.5])              # torch.stack([i.to(torch.float64).to(torch.float32), torch.full((), 1.5)])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.values.base import Constant
from treadle_tracer.values.tensor import TensorValue

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def is_scalar(value: Value) -> TypeGuard[TensorValue]:
    """Whether it is a plain tensor without dimensions, which the constructors read without a warning."""
    if not isinstance(value, TensorValue) or not is_one_of(value.python_type(), (torch.Tensor, torch.nn.Parameter)):
        return False
    fake = value.fake
    is_real = is_one_of(fake.dtype, (torch.bool, *_INTEGERS, *_FLOATS)) and fake.layout == torch.strided
    return fake.dim() == 0 and is_real and not fake.requires_grad and fake.device.type != "meta"


def dtype_of(numbers: list[Value]) -> torch.dtype:
    """The dtype that the constructors infer for these numbers and scalar tensors."""
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    dtypes = [n.fake.dtype if isinstance(n, TensorValue) else kinds[n.python_type()] for n in numbers]
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = torch.promote_types(found, dtype)
    return found


def why_not_stacked(
    tx: TraceContext, scalars: list[TensorValue], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why a graph would not hold what the constructors make of these scalars; None if it would."""
    if not tx.runs_forward:
        return "the transforms of torch.func do not let numbers be read"
    if any(scalar.fake.device != device for scalar in scalars):
        return "the scalars are on another device"
    if not all(_is_held(scalar.fake.dtype, dtype) for scalar in scalars):
        return "eager raises for numbers that the dtype does not hold"
    return None


def _is_held(source: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether eager's constructor converts every number without an exception."""
    if source == torch.bool or (source in _INTEGERS and dtype in _INTEGERS):
        return dtype in (torch.bool, *_INTEGERS, *_FLOATS) and torch.promote_types(source, dtype) == dtype
    return dtype in _FLOATS


def converted(tx: TraceContext, scalar: TensorValue, dtype: torch.dtype) -> Value:
    """The scalar in this dtype. The constructors read integers as doubles first, where the dtype is a floating one."""
    own = scalar.fake.dtype
    steps = [] if own == dtype else [torch.float64, dtype] if own in _INTEGERS and dtype.is_floating_point else [dtype]
    made: Value = scalar
    for step in steps:
        made = tx.run_in_graph("call_method", "to", [made, Constant(step)], {})
    return made


__all__ = ["converted", "dtype_of", "is_scalar", "why_not_stacked"]
