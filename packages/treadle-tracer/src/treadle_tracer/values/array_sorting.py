"""Sorted arrays of the graph: `sort`, `argsort`, `unique`, `searchsorted`.

NumPy's default sort is not stable, so that the order of equal elements is its own affair: it shows in positions, and in the signs of
zeros. The graph asserts that there are no such elements; where the assert fails, Python runs the program (`array_warnings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.array_options import is_absent, plain
from treadle_tracer.values.array_ufuncs import as_array, axes_of, converted
from treadle_tracer.values.array_warnings import note_flag
from treadle_tracer.values.arrays import ArrayValue, in_graph, numpy_module
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_STABLE = ("stable", "mergesort")
_KINDS = (*_STABLE, "quicksort", "heapsort")


def _is_stable(array: ArrayValue, kind: Value | None, order: Value | None, stable: Value | None) -> bool:
    """Whether these options ask for a stable sort. Raises Unsupported for what NumPy refuses, and for arrays that are not sorted here."""
    if not is_absent(order):
        raise Unsupported("numpy", "a sort by fields")
    if array.is_scalar or array.ndim == 0 or array.dtype.kind not in "biuf":
        raise Unsupported("numpy", f"a sort of {array.describe()}")
    named, wanted = plain(kind), plain(stable)
    is_known = (named is None or (named in _KINDS and wanted is None)) and (wanted is None or type(wanted) is bool)
    if not is_known:
        raise Unsupported("numpy", "a sort of this kind")
    return named in _STABLE or wanted is True


def _sorted_with_places(tx: TraceContext, tensor: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    found = tx.run_in_graph("call_function", torch.sort, [tensor], {"dim": Constant(dim), "stable": Constant(True)})
    values, places = found.unpack(tx)
    assert isinstance(values, TensorValue) and isinstance(places, TensorValue)
    return values, places


def _neighbours(tx: TraceContext, tensor: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    """All elements but the last along a dimension, and all but the first."""
    size = tensor.fake.shape[dim]
    if not isinstance(size, int):
        raise Unsupported("numpy", "the order of as many elements as data tells")
    ends = [in_graph(tx, torch.narrow, tensor, dim, start, max(size - 1, 0)) for start in (0, min(size, 1))]
    return ends[0], ends[1]


def _note_negative_zeros(tx: TraceContext, array: ArrayValue) -> None:
    """Which of two zeros comes first shows where one is negative."""
    if array.dtype.kind == "f":
        is_zero = in_graph(tx, torch.eq, array.tensor, 0)
        note_flag(tx, in_graph(tx, torch.logical_and, is_zero, in_graph(tx, torch.signbit, array.tensor)))


def _note_ties(tx: TraceContext, values: TensorValue, dim: int) -> None:
    """Neighbours in a sorted tensor that are equal, or both NaN."""
    if values.fake.shape[dim] == 1:
        return
    first, second = _neighbours(tx, values, dim)
    flag = in_graph(tx, torch.eq, first, second)
    if values.fake.dtype.is_floating_point:
        flag = in_graph(tx, torch.logical_or, flag, in_graph(tx, torch.isnan, first))
    note_flag(tx, flag)


def sort_in_place(
    tx: TraceContext,
    owner: ArrayValue,
    axis: Value | None = None,
    kind: Value | None = None,
    order: Value | None = None,
    *,
    stable: Value | None = None,
):
    """`owner.sort(...)`"""
    is_stable = _is_stable(owner, kind, order, stable)
    (dim,) = axes_of(tx, plain(axis, -1), owner.ndim)
    if not is_stable:
        _note_negative_zeros(tx, owner)
    values, _ = _sorted_with_places(tx, owner.tensor, dim)
    in_graph(tx, torch.Tensor.copy_, owner.tensor, values)
    return NONE


def argsort(
    tx: TraceContext,
    owner: ArrayValue,
    axis: Value | None = None,
    kind: Value | None = None,
    order: Value | None = None,
    *,
    stable: Value | None = None,
):
    """`owner.argsort(...)`"""
    is_stable = _is_stable(owner, kind, order, stable)
    if axis is not None and is_absent(axis):
        owner, axis = ArrayValue(in_graph(tx, torch.reshape, owner.tensor, (-1,))), None
    (dim,) = axes_of(tx, plain(axis, -1), owner.ndim)
    values, places = _sorted_with_places(tx, owner.tensor, dim)
    if not is_stable:
        _note_ties(tx, values, dim)
    return ArrayValue(places)


def unique(
    tx: TraceContext,
    given: Value,
    return_index: Value | None = None,
    return_inverse: Value | None = None,
    return_counts: Value | None = None,
    axis: Value | None = None,
    *,
    equal_nan: Value | None = None,
    sorted: Value | None = None,
):
    """`numpy.unique(...)` of all elements, without the positions of the first ones."""
    if plain(return_index, False) or not is_absent(axis) or plain(sorted, True) is not True:
        raise Unsupported("numpy", "numpy.unique with these options")
    array = as_array(tx, given)
    if array.dtype.kind not in "biuf":
        raise Unsupported("numpy", f"numpy.unique of {array.describe()}")
    wants_inverse, wants_counts = bool(plain(return_inverse, False)), bool(plain(return_counts, False))
    _note_negative_zeros(tx, array)
    if array.dtype.kind == "f":  # PyTorch takes every NaN for a value of its own
        note_flag(tx, in_graph(tx, torch.isnan, array.tensor))
    options: dict[str, Value] = {
        "sorted": Constant(True),
        "return_inverse": Constant(wants_inverse),
        "return_counts": Constant(wants_counts),
    }
    found = tx.run_in_graph("call_function", torch.unique, [array.tensor], options)
    parts: list[Any] = found.unpack(tx) if wants_inverse or wants_counts else [found]
    arrays: list[Value] = [ArrayValue(part) for part in parts]
    return TupleValue(arrays) if len(arrays) > 1 else arrays[0]


def searchsorted(tx: TraceContext, owner: ArrayValue, v: Value, side: Value | None = None, sorter: Value | None = None):
    """`owner.searchsorted(...)` of an array in order, in which NumPy's search and PyTorch's come to the same places."""
    where = plain(side, "left")
    if not is_absent(sorter) or where not in ("left", "right") or owner.ndim != 1:
        raise Unsupported("numpy", "searchsorted with these options")
    wanted = as_array(tx, v)
    dtype = numpy_module().promote_types(owner.dtype, wanted.dtype)
    if dtype.kind not in "iuf":
        raise Unsupported("numpy", f"searchsorted in {owner.describe()}")
    steps, values = converted(tx, owner.tensor, dtype), converted(tx, wanted.tensor, dtype)
    if steps.fake.shape[0] != 1:
        first, second = _neighbours(tx, steps, 0)
        note_flag(tx, in_graph(tx, torch.logical_not, in_graph(tx, torch.le, first, second)))
    for each in (steps, values):
        if dtype.kind == "f":
            note_flag(tx, in_graph(tx, torch.isnan, each))
    contiguous = [in_graph(tx, torch.Tensor.contiguous, each) for each in (steps, values)]
    found = in_graph(tx, torch.searchsorted, *contiguous, side=where)
    return ArrayValue(found, wanted.ndim == 0)


def searchsorted_function(tx: TraceContext, a: Value, v: Value, side: Value | None = None, sorter: Value | None = None):
    """`numpy.searchsorted(...)`, of a list too"""
    return searchsorted(tx, as_array(tx, a), v, side, sorter)


def median(tx: TraceContext, a: Value, axis: Value | None = None, **options: Value):
    """`numpy.median(a, axis)` of numbers that are not NaN."""
    array = as_array(tx, a)
    places = [None] if is_absent(axis) else axes_of(tx, axis, array.ndim)
    if options or len(places) != 1 or array.ndim == 0 or any(size == 0 for size in array.tensor.fake.shape):
        raise Unsupported("numpy", "numpy.median with these options")
    if array.dtype.kind == "f":
        note_flag(tx, in_graph(tx, torch.isnan, array.tensor))
    return tx.inline(tx.wrap_known(_median), [tx.wrap_known(numpy_module()), array, Constant(places[0])], {})


def _median(numpy: Any, a: Any, axis: int | None) -> Any:
    """The mean of the elements in the middle, as NumPy takes it."""
    ordered = numpy.sort(a, axis=axis)
    axis = 0 if axis is None else axis
    middle, is_single = divmod(ordered.shape[axis], 2)
    indexer = [slice(None)] * ordered.ndim
    indexer[axis] = slice(middle if is_single else middle - 1, middle + 1)
    return numpy.mean(ordered[tuple(indexer)], axis=axis)
