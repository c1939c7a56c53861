"""Strides of the results of operators, as eager's kernels give them. Needs torch.

    iterated_strides((1, 4), [((1, 4), (1, 1))])        # (4, 1): a row-major tensor, whatever the stride of its dimension of 1
    in_eager_layout(mode, func, args, kwargs, fake)     # the fake result of a call, with eager's strides

Results of pointwise operators have the strides of an iteration over the operands. PyTorch's fake kernels run references in Python, which
find the same order of the dimensions for most operands, but not for dimensions of 1, operands that are expanded or lie in different orders,
and operators whose references are made of others (torch 2.11 to 2.13). aten/src/ATen/TensorIterator.cpp, fast_set_up and
reorder_dimensions. `Operator.iterates` tells whose kernels are no such iteration. Results of a few others are row-major whatever the
operands are (`Operator.is_row_major`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes, make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes.torch.operators import Kind, operator

Ints = tuple[int, ...]
Operand = tuple[Ints, Ints]
_PROMOTION = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
_CHANNELS_LAST = (1, 3, 2, 0)


def iterated_strides(shape: Ints, operands: Sequence[Operand]) -> Ints:
    """The strides of a result of `shape` for operands given as (sizes, strides). A number is an operand without dimensions."""
    if all(sizes == shape for sizes, _ in operands):
        if all(_fills(operand, reversed(range(len(shape)))) for operand in operands):
            return tuple(make_contiguous_strides_for(shape))
        if len(shape) == 4 and all(_fills(operand, _CHANNELS_LAST) for operand in operands):
            return _in_order(shape, _CHANNELS_LAST)
        if len({strides for _, strides in operands}) == 1 and _is_dense(operands[0]):
            return operands[0][1]
    order = _order(shape, [_broadcast(operand, shape) for operand in operands])
    return _in_order(shape, order)


def in_eager_layout(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    """The fake `result` of a call, with eager's strides. Strides of an iteration are found where all sizes and strides are constant."""
    if _is_row_major(func):
        if isinstance(result, tuple):
            return (in_eager_layout(mode, func, args, kwargs, result[0]), *result[1:])
        if _is_static(result) and result.stride() == make_contiguous_strides_for(result.shape):
            return result
        with mode:
            return torch.empty(result.shape, dtype=result.dtype, device=result.device)
    if not isinstance(result, FakeTensor) or not _iterates(func) or not _is_static(result) or 0 in result.shape:
        return result
    tensors: list[tuple[str, torch.Tensor]] = []
    numbers: list[Any] = []
    for place, (name, is_tensor) in enumerate(_operands(func)):
        given = args[place] if place < len(args) else kwargs.get(name)
        if isinstance(given, torch.Tensor):
            if not _is_static(given):
                return result
            tensors.append((name, given))
        elif is_tensor and isinstance(given, (int, float, complex)):
            numbers.append(given)
    if all(t.stride() == make_contiguous_strides_for(t.shape) for _, t in tensors):
        return result
    if not all(_broadcasts(tuple(t.shape), result.shape) for _, t in tensors):
        return result  # `glu` halves a dimension
    operands = [*_as_iterated(tensors, numbers, result), *[((), ())] * len(numbers)]
    return _with_strides(mode, result, iterated_strides(tuple(result.shape), operands))


def _as_iterated(
    tensors: Sequence[tuple[str, torch.Tensor]], numbers: Sequence[Any], result: torch.Tensor
) -> list[Operand]:
    """The tensors as an iteration sees them. On the CPU those of another dtype than all have in common are copied to that one first, and
    a copy of a tensor with gaps or shared elements fills memory (TensorIteratorBase::compute_types)."""
    operands: list[Operand] = [(tuple(t.shape), t.stride()) for _, t in tensors]
    promoted = [t for name, t in tensors if name != "condition"]
    if result.device.type != "cpu" or (result.dtype is promoted[0].dtype and len({t.dtype for t in promoted}) == 1):
        return operands
    _, common = elementwise_dtypes(*promoted, *numbers, type_promotion_kind=_PROMOTION)
    if result.dtype.is_floating_point and not (common.is_floating_point or common.is_complex):
        common = result.dtype
    return [
        operand if t.dtype is common or name == "condition" or _is_dense(operand) else _copied(operand)
        for (name, t), operand in zip(tensors, operands, strict=True)
    ]


def _copied(operand: Operand) -> Operand:
    sizes, strides = operand
    return sizes, _in_order(sizes, _order(sizes, [strides]))


def _with_strides(mode: Any, result: torch.Tensor, strides: Ints) -> torch.Tensor:
    if strides == result.stride():
        return result
    with mode:
        return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


@functools.cache
def _iterates(func: Any) -> bool:
    record = operator(func)
    if record is None or record.kind is not Kind.POINTWISE or not record.iterates or len(func._schema.returns) != 1:
        return False
    if record.fake_kernel is not None or func.namespace != "aten":
        return False
    return not any(argument.alias_info for argument in (*func._schema.arguments, *func._schema.returns))


@functools.cache
def _is_row_major(func: Any) -> bool:
    record = operator(func)
    return record is not None and record.is_row_major and "out" not in func._overloadname


@functools.cache
def _operands(func: Any) -> tuple[tuple[str, bool], ...]:
    """(name, whether a number given there is an operand) of the parameters. The overloads for numbers make tensors of them."""
    overload = func._overloadname
    takes_number = "Scalar" in overload and overload != "Tensor_Scalar"
    return tuple(
        (a.name, a.type.kind() == "TensorType" or (takes_number and a.name in ("self", "other", "exponent")))
        for a in func._schema.arguments
    )


def _is_static(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not value._has_symbolic_sizes_strides  # type: ignore[attr-defined]


def _broadcasts(sizes: Ints, shape: Sequence[int]) -> bool:
    return len(sizes) <= len(shape) and all(
        size in (1, wanted) for size, wanted in zip(reversed(sizes), reversed(shape), strict=False)
    )


def _fills(operand: Operand, order: Any) -> bool:
    """Whether the dimensions, in this order from the fastest, fill memory without gaps; those of 1 have any stride."""
    sizes, strides = operand
    expected = 1
    for d in order:
        if sizes[d] != 1:
            if strides[d] != expected:
                return False
            expected *= sizes[d]
    return True


def _is_dense(operand: Operand) -> bool:
    return _fills(operand, sorted(range(len(operand[0])), key=lambda d: operand[1][d]))


def _in_order(shape: Ints, order: Sequence[int]) -> Ints:
    """The strides of a dense tensor whose dimensions lie in this order from the fastest."""
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def _broadcast(operand: Operand, shape: Ints) -> list[int]:
    sizes, strides = operand
    missing = len(shape) - len(sizes)
    return [0] * missing + [
        0 if size == 1 and shape[missing + d] != 1 else step
        for d, (size, step) in enumerate(zip(sizes, strides, strict=True))
    ]


def _order(shape: Ints, strides: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions from the fastest, by an insertion sort in which some pairs have no order."""
    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):
        at = i
        for before in reversed(range(i)):
            found = _compared(order[before], order[at], shape, strides)
            if found > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif found < 0:
                break
    return order


def _compared(a: int, b: int, shape: Ints, strides: Sequence[Sequence[int]]) -> int:
    """1 if the dimension `a` comes behind `b`, -1 if it comes before, 0 if no operand tells."""
    for of_operand in strides:
        first, second = of_operand[a], of_operand[b]
        if first == 0 or second == 0:
            continue
        if first != second:
            return 1 if first > second else -1
        if shape[a] > shape[b]:
            return 1
    return 0


__all__ = ["in_eager_layout", "iterated_strides"]
