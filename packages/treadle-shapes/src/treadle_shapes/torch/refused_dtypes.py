"""Calls to which eager says something else than fake tensors, because of dtypes: it refuses them, or gives another dtype. Needs torch.

flags - 1, torch.relu(flags), counts.mul_(1.5), halves & 1    # flags of bool, counts of int32: eager raises, a fake kernel gives a result

Only the kernel itself knows which dtypes it takes. So it is called once for each combination of dtypes and kinds of numbers, on tensors of
one element, or two. Such a call may fail for other reasons, such as its sizes: where it fails for every dtype, nothing is said.

It must not fail for its values: a kernel of CUDA that meets a class out of range leaves the whole process without its device. So what is
divided by is 1, and of losses and gathers, whose integers are classes and positions, all elements are 0, the only one there is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from treadle_shapes.torch.operators import operator
from treadle_shapes.torch.operators.record import Kind

_KINDS = frozenset(
    {Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.SORT, Kind.MATMUL, Kind.LOSS, Kind.NORMALISATION, Kind.GATHER}
)
# Integers of these kinds are classes and positions.
_POSITIONS = frozenset({Kind.LOSS, Kind.GATHER})
# Every operator of these kinds has kernels for them; of pointwise operators, those on bits have none.
_COMPLETE = frozenset({torch.float32, torch.float64})

Dtypes = Mapping[torch.dtype, torch.dtype]


class _AllTo(dict[torch.dtype, torch.dtype]):
    """Another dtype in the place of every dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __missing__(self, _: torch.dtype) -> torch.dtype:
        return self.dtype


class _Classes(dict[torch.dtype, torch.dtype]):
    """float32 in the place of floats, int64 in the place of everything else, such as classes and positions."""

    def __missing__(self, given: torch.dtype) -> torch.dtype:
        return torch.float32 if given.is_floating_point else torch.int64


class _Scores(_Classes):
    """The same, float32 too in the place of the first argument's dtype, such as that of a loss."""


# Each operator takes at least one of them in the place of its tensors' dtypes, with the numbers as they are or with 1 for True.
_OTHERS = tuple(
    (dtypes, has_flags)
    for has_flags in (True, False)
    for dtypes in (*map(_AllTo, (torch.float32, torch.int64, torch.bool, torch.complex64)), _Classes(), _Scores())
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
_MOST_ANSWERS = 10_000
# Numbers beyond these are asked about as they are: not every dtype holds them.
_SMALL = range(-128, 128)


class KernelAnswer(NamedTuple):
    """What eager says to a call on tensors of one element."""

    #: why it refuses the dtypes, None where it does not
    refusal: str | None
    #: the dtype of the result, None where that is no tensor
    dtype: torch.dtype | None


_answers: dict[Any, KernelAnswer] = {}


class _Unknown(Exception):
    """An argument for which nothing can stand in."""


class _Tensor(tuple[Any, ...]):
    """What stands for a tensor in a key: dtype, number of dimensions, device."""

    __slots__ = ()


class _Number(tuple[Any, ...]):
    """What stands for a number in a key."""

    __slots__ = ()


class _Call(NamedTuple):
    """A call on tensors of one element."""

    target: Any  # a function, or a method's name
    parts: tuple[Any, ...]  # arguments
    named: dict[str, Any]
    is_pointwise: bool
    element: int  # the element of the tensors
    with_sizes: bool = False  # whether whole numbers are sizes or groups, and so 1
    in_rows: bool = False  # whether rows have two elements, which statistics of a group and halves need


def ask_kernel(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> KernelAnswer | None:
    """What eager's kernel says to `target` (a function, or a method's name) on tensors of these dtypes. None where it is not asked."""
    is_in_place = isinstance(target, str) and target.endswith("_") and not target.endswith("__")
    record = operator(target[:-1] if is_in_place else target)
    if record is None or record.kind not in _KINDS or kwargs.get("out") is not None:
        return None
    is_pointwise = record.kind is Kind.POINTWISE
    dtypes: set[torch.dtype] = set()
    try:
        parts = tuple([_part(arg, is_pointwise, dtypes) for arg in args])
        named = tuple([(name, _part(arg, is_pointwise, dtypes)) for name, arg in kwargs.items()]) if kwargs else ()
    except _Unknown:
        return None
    if not dtypes or (not is_pointwise and len(dtypes) == 1 and dtypes <= _COMPLETE):
        return None
    settings = torch.get_default_dtype(), torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    key = target, parts, named, settings
    found = _answers.get(key)
    if found is None:
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        found = _answers[key] = _ask(
            _Call(target, parts, dict(named), is_pointwise, 0 if record.kind in _POSITIONS else 1)
        )
    return found


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
        is_large = (kind is int and value not in _SMALL) or (kind is float and not -128 <= value <= 127)
        return _Number((kind, value if is_position or is_large else _NUMBERS[kind]))
    if kind in _KEPT:
        return value
    if kind in (tuple, list, torch.Size):
        return tuple([_part(item, is_pointwise, dtypes) for item in value])
    raise _Unknown


def _ask(call: _Call) -> KernelAnswer:
    """The answer to the call, its whole numbers as they are (`dim=1`) or, where every dtype is refused so, 1 (`normalized_shape=[8]`)."""
    for asked in (call, call._replace(with_sizes=True), call._replace(with_sizes=True, in_rows=True)):
        answer = _answer(asked)
        if answer.refusal is None or any(_answer(asked, *other).refusal is None for other in _OTHERS):
            return answer
    return KernelAnswer(None, None)


def _answer(call: _Call, dtypes: Dtypes | None = None, has_flags: bool = True) -> KernelAnswer:
    """What the call says on tensors of one element, with other `dtypes` where those are given."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parts = call.parts
            if isinstance(dtypes, _Scores) and parts and isinstance(parts[0], _Tensor):
                parts = (_Tensor((torch.float32, *parts[0][1:])), *parts[1:])
            args = [_stand_in(part, call, dtypes, has_flags) for part in parts]
            kwargs = {name: _stand_in(part, call, dtypes, has_flags) for name, part in call.named.items()}
            function: Any = call.target
            if isinstance(function, str):
                function, args = getattr(args[0], function), args[1:]
            result = function(*args, **kwargs)
        except Exception as error:  # any: functions written in Python assert what does not hold of such small tensors
            return KernelAnswer(f"{type(error).__name__}: {error}", None)
    return KernelAnswer(None, result.dtype if isinstance(result, torch.Tensor) else None)


def _stand_in(part: Any, call: _Call, dtypes: Dtypes | None, has_flags: bool) -> Any:
    if isinstance(part, _Tensor):
        dtype = part[0] if dtypes is None else dtypes[part[0]]
        sizes = [1] * part[1]
        if call.in_rows and len(sizes) >= (1 if call.is_pointwise else 3):
            sizes[-1] = 2
        return torch.full(sizes, call.element, dtype=dtype, device=part[2])
    if isinstance(part, _Number):
        if call.with_sizes and part[0] is int and part[1] > 0:
            return 1
        return part[1] if has_flags or part[0] is not bool else int(part[1])
    if isinstance(part, tuple):
        return tuple([_stand_in(item, call, dtypes, has_flags) for item in part])
    return part


__all__ = ["KernelAnswer", "ask_kernel"]
