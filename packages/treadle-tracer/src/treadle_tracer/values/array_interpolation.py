"""`np.interp`, in the operations of NumPy's C function (numpy/_core/src/multiarray/compiled_base.c, arr_interp), and `np.linspace`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.array_options import plain, size_option
from treadle_tracer.values.array_ufuncs import as_array, converted, in_dtype, operand
from treadle_tracer.values.arrays import ArrayValue, numpy_module
from treadle_tracer.values.base import Constant
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def interp(
    tx: TraceContext, x: Value, xp: Value, fp: Value, left: Value | None = None, right: Value | None = None
) -> ArrayValue:
    """Linear interpolation of real points at an array of places. All dtypes become float64."""
    arrays = [as_array(tx, one) for one in (x, xp, fp)]
    places, *points = arrays
    if places.ndim == 0 or any(array.dtype.kind not in "biuf" for array in arrays):
        raise Unsupported("numpy", "numpy.interp of these arrays")
    sizes = [tuple(array.tensor.fake.shape) for array in points]
    if any(len(size) != 1 or not isinstance(size[0], int) or size[0] < 2 for size in sizes) or sizes[0] != sizes[1]:
        raise Unsupported("numpy", "numpy.interp between these points")
    beyond = [None if one is None else plain(one) for one in (left, right)]
    if not all(one is None or isinstance(one, (int, float)) for one in beyond):
        raise Unsupported("numpy", "numpy.interp with these values beyond the points")
    wide = [converted(tx, array.tensor, numpy_module().dtype("float64")) for array in arrays]
    found = tx.inline(tx.wrap_known(_interpolated), [*wide, *map(Constant, beyond)], {})
    assert isinstance(found, TensorValue)
    return ArrayValue(found)


def _interpolated(x: Any, xp: Any, fp: Any, left: float | None, right: float | None) -> Any:
    """Traced in place of the C function."""
    last = xp.shape[0] - 1
    before = torch.searchsorted(xp, x, right=True) - 1
    low = before.clamp(0, last - 1)
    x0, x1, y0, y1 = xp[low], xp[low + 1], fp[low], fp[low + 1]
    slope = (y1 - y0) / (x1 - x0)
    found = slope * (x - x0) + y0
    found = torch.where(found.isnan(), slope * (x - x1) + y1, found)
    found = torch.where(found.isnan() & (y0 == y1), y0, found)
    found = torch.where(x == x0, y0, found)
    found = torch.where(x == xp[last], fp[last], found)
    found = torch.where(x < xp[0], fp[0] if left is None else left, found)
    found = torch.where(x > xp[last], fp[last] if right is None else right, found)
    return torch.where(x.isnan(), x, found)


def linspace(
    tx: TraceContext,
    start: Value,
    stop: Value,
    num: Value | None = None,
    endpoint: Value | None = None,
    **options: Value,
) -> Value:
    """Numbers at equal distances, where an end, or how many there are, is not known yet.

    Between arrays, and with options, it is NumPy's own body.
    """
    ends = [operand(tx, one) for one in (start, stop)]
    kinds = [numpy_module().dtype(end.kind) for end in ends]
    count = Constant(50) if num is None else size_option(tx, num)
    has_end = plain(endpoint, True)
    is_plain = all(end.ndim == 0 and kind.name in ("int64", "float64") for end, kind in zip(ends, kinds, strict=True))
    if options or not is_plain or type(has_end) is not bool or not tx.compare(">", count, Constant(1)).truth(tx):
        given = {name: value for name, value in (("num", num), ("endpoint", endpoint)) if value is not None}
        body = numpy_module().linspace._implementation
        return tx.inline(tx.wrap_known(body), [start, stop], {**given, **options})
    wide = [in_dtype(tx, end, numpy_module().dtype("float64")) for end in ends]
    found = tx.inline(tx.wrap_known(_spaced), [*wide, count, Constant(has_end)], {})
    assert isinstance(found, TensorValue)
    return ArrayValue(found)


def _spaced(start: Any, stop: Any, num: int, endpoint: bool) -> Any:
    """Traced in place of the body, which decides whether the distance is 0."""
    parts = num - 1 if endpoint else num
    delta = stop - start
    step = delta / parts
    y = torch.arange(0, num, dtype=torch.float64, device=start.device)
    y = torch.where(step == 0, y / parts * delta, y * step) + start
    if endpoint:
        y[-1] = stop
    return y
