"""Tensors that a call is told to write its result to (`out=`) and that have another dtype than the result.

    torch.add(x, y, out=doubles)        eager converts
    torch.amax(x, 0, out=doubles)       eager raises

Each of eager's kernels decides on its own which dtypes it takes, those of fake tensors take all. Python runs such calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.errors import Unsupported


def refuse_other_dtypes(target: Any, kwargs: Mapping[str, Any], run: Callable[[dict[str, Any]], Any]) -> None:
    """Raise Unsupported for `out=` of another dtype than the call's result. run: the call on fake tensors with these named arguments."""
    given = _tensors(kwargs.get("out"))
    record = operator_record(target)
    if not given or (
        record is not None and (record.has_data_dependent_size or _makes_any(record.kind, given[0].dtype))
    ):
        return
    with torch.no_grad():
        results = _tensors(run({name: value for name, value in kwargs.items() if name != "out"}))
    if [tensor.dtype for tensor in results] != [tensor.dtype for tensor in given]:
        raise Unsupported("torch-call-raises", f"{getattr(target, '__name__', target)}: out= of another dtype")


def _makes_any(kind: Kind, dtype: torch.dtype) -> bool:
    """Whether operators of the kind make tensors of the dtype that they write to."""
    if kind is Kind.CREATION:
        return dtype is not torch.bool and not dtype.is_complex
    return kind is Kind.RANDOM and dtype.is_floating_point


def _tensors(value: Any) -> list[torch.Tensor]:
    found = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in found if isinstance(item, torch.Tensor)]


__all__ = ["refuse_other_dtypes"]
