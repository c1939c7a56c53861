"""Calls that eager refuses because of the dtypes of their arguments, where fake tensors accept them. Needs torch.

flags - 1, torch.relu(flags), counts.mul_(1.5), halves & 1    # flags of bool, counts of int32: eager raises, a fake kernel gives a result

Only the kernel itself knows which dtypes it takes. So it is called once for each combination of dtypes and kinds of numbers, on tensors of
one element. Such a call may fail for other reasons, such as its sizes: where it fails for every dtype, nothing is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.torch.operators import operator
from treadle_shapes.torch.operators.record import Kind

_KINDS = frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.SORT, Kind.MATMUL, Kind.LOSS, Kind.NORMALISATION})
# Every operator of these kinds has kernels for them; of pointwise operators, those on bits have none.
_COMPLETE = frozenset({torch.float32, torch.float64})
# Each operator takes at least one of them in the place of all its tensors, with the numbers as they are or with 1 for True.
_OTHERS = tuple(
    (dtype, has_flags)
    for has_flags in (True, False)
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64)
)
_NUMBERS: dict[Any, Any] = {
    bool: True,
    int: 1,
    float: 1.5,
    complex: 1j,
    torch.SymBool: True,
    torch.SymInt: 1,
    torch.SymFloat: 1.5,
}
_KEPT = (type(None), str, torch.dtype, torch.memory_format)
_REFUSES = (RuntimeError, TypeError, ValueError, IndexError)  # NotImplementedError is a RuntimeError

_answers: dict[Any, str | None] = {}


class _Unknown(Exception):
    """An argument for which nothing can stand in."""


class _Tensor(tuple[Any, ...]):
    """What stands for a tensor in a key: dtype, number of dimensions, device."""

    __slots__ = ()


class _Number(tuple[Any, ...]):
    """What stands for a number in a key."""

    __slots__ = ()


def why_not_dtypes(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why eager refuses to call `target` (a function, or a method's name) on tensors of these dtypes, or None."""
    record = operator(target)
    if record is None or record.kind not in _KINDS or kwargs.get("out") is not None:
        return None
    is_pointwise = record.kind is Kind.POINTWISE
    dtypes: set[torch.dtype] = set()
    try:
        parts = tuple([_part(arg, is_pointwise, dtypes) for arg in args])
        named = tuple([(name, _part(arg, is_pointwise, dtypes)) for name, arg in kwargs.items()]) if kwargs else ()
    except _Unknown:
        return None
    if not dtypes or (not is_pointwise and dtypes <= _COMPLETE):
        return None
    key = target, parts, named, torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    if key not in _answers:
        _answers[key] = _ask(target, parts, dict(named))
    return _answers[key]


def _part(value: Any, is_pointwise: bool, dtypes: set[torch.dtype]) -> Any:
    """The part of a key for an argument. Adds the dtypes of tensors to `dtypes`. Raises _Unknown."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type == "meta":
            raise _Unknown
        dtypes.add(value.dtype)
        dim = value.dim()
        return _Tensor((value.dtype, min(dim, 1) if is_pointwise else dim, value.device.type))
    kind = type(value)
    if kind in _NUMBERS:
        is_position = kind in (int, bool) and not is_pointwise  # a dimension
        return _Number((kind, value if is_position else _NUMBERS[kind]))
    if kind in _KEPT:
        return value
    if kind in (tuple, list, torch.Size):
        return tuple([_part(item, is_pointwise, dtypes) for item in value])
    raise _Unknown


def _ask(target: Any, parts: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    complaint = _complaint(target, parts, named)
    if complaint is None or all(_complaint(target, parts, named, *other) is not None for other in _OTHERS):
        return None
    return complaint


def _complaint(
    target: Any,
    parts: tuple[Any, ...],
    named: dict[str, Any],
    dtype: torch.dtype | None = None,
    has_flags: bool = True,
) -> str | None:
    """What the call raises on tensors of one element, of `dtype` where that is given."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            args = [_stand_in(part, dtype, has_flags) for part in parts]
            kwargs = {name: _stand_in(part, dtype, has_flags) for name, part in named.items()}
            function: Callable[..., Any] = target
            if isinstance(target, str):
                function, args = getattr(args[0], target), args[1:]
            function(*args, **kwargs)
        except _REFUSES as error:
            return f"{type(error).__name__}: {error}"
    return None


def _stand_in(part: Any, dtype: torch.dtype | None, has_flags: bool) -> Any:
    if isinstance(part, _Tensor):
        return torch.ones((1,) * part[1], dtype=dtype or part[0], device=part[2])
    if isinstance(part, _Number):
        return part[1] if has_flags or part[0] is not bool else int(part[1])
    return tuple([_stand_in(item, dtype, has_flags) for item in part]) if isinstance(part, tuple) else part


__all__ = ["why_not_dtypes"]
