"""Calls of ATen operators on whole tensors: operators without a lowering, and those that ATen's kernels do better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from treadle_codegen.ir.loops import Bind, Extern, IntLike, View
from treadle_codegen.lower.context import Lowering, view_of
from treadle_codegen.lower.indexing import (
    Shape,
    as_intlike,
    as_shape,
    contiguous,
    dense_strides,
    exact_strides,
    is_dense,
    is_plain,
    not_smaller,
    product,
    same_strides,
    slowest_first,
    stride_order,
)
from treadle_codegen.lower.tensor_expr import TensorExpr
from treadle_codegen.lower.view import narrow
from treadle_shapes.torch import operator as operator_record

aten = torch.ops.aten
_LARGEST_GAP = 16  # elements behind a row that is shorter than that; longer rows may have gaps of their own size


def lower_extern(
    lowering: Lowering, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], binds: tuple[Bind, ...] = ()
) -> Any:
    """A call of `op`; returns TensorExprs in the structure of its result (`lowering.val`), None for results that are no tensors.

    Arguments hold TensorExprs, which become views of memory; they are stored first where they are not. `binds` are the
    symbols that the results define.
    """
    record = operator_record(op)
    if not _is_opaque_view(lowering.val):
        op = functional_copy(op)
    # With a result that does not depend on strides, arguments need no copy into the layout that eager would have had.
    prepare = _blas_argument if record is not None and record.takes_any_strides else _exact_argument
    new_args = tuple(_map_tensors(a, lambda x: prepare(lowering, x)) for a in args)
    new_kwargs = {k: _map_tensors(v, lambda x: prepare(lowering, x)) for k, v in kwargs.items()}
    val = lowering.val
    many = isinstance(val, (tuple, list))
    results = val if many else [val] if op._schema.returns else []
    outputs = [_output(lowering, v, raw=bool(binds)) for v in results]
    out_op = None if record is None or _takes_opaque(lowering, new_args) else record.out
    if out_op is not None and isinstance(results[0], torch.Tensor):
        buffer = lowering.buffers[_buffer_name(outputs[0])]
        if not same_strides(buffer.shape, buffer.strides, contiguous(buffer.shape)) or buffer.name in lowering.foreign:
            out_op = None
    names = tuple(_buffer_name(x) for x in outputs)
    step = Extern(
        lowering.fresh(f"extern_{lowering.name}"),
        out_op or op,
        new_args,
        new_kwargs,
        names,
        out_op is not None,
        (lowering.name,),
        binds,
    )
    lowering.steps.append(step)
    return tuple(outputs) if many else outputs[0] if outputs else None


def _takes_opaque(lowering: Lowering, args: tuple[Any, ...]) -> bool:
    return any(isinstance(a, View) and lowering.buffers[a.buffer].opaque for a in args)


def _is_opaque_view(val: Any) -> bool:
    """Whether a result is a tensor without strided memory, such as a sparse one. The plan does not reuse its memory, so that it may be a
    view; and sparse tensors have no kernels for most copying forms (`t_copy`)."""
    return isinstance(val, torch.Tensor) and not is_plain(val)


def _buffer_name(x: Any) -> str:
    """The buffer of a stored tensor; "" for a result that is none."""
    return x.storage.buffer if isinstance(x, TensorExpr) and x.storage is not None else ""


def functional_copy(op: Any) -> Any:
    """The overload that returns fresh memory, for an operator that would return a view."""
    schema = op._schema
    if not any(r.alias_info is not None for r in schema.returns):
        return op
    packet = getattr(aten, f"{schema.name.split('::')[1]}_copy", None) if schema.name.startswith("aten::") else None
    overload = schema.overload_name or "default"
    return getattr(packet, overload, op) if packet is not None else op


def why_not_extern(op: Any) -> str | None:
    """Why an operator cannot be called on planned memory: it mutates, or returns a view of, its arguments."""
    schema = functional_copy(op)._schema
    if schema.is_mutable:
        return f"{op} mutates its arguments; the graph must be functional"
    if any(r.alias_info is not None for r in schema.returns):
        return f"{op} returns a view and has no copying form"
    return None


def _output(lowering: Lowering, val: Any, *, raw: bool) -> Any:
    """`raw`: in the symbols that the call itself defines, whatever is learnt about them afterwards."""
    if not isinstance(val, torch.Tensor):
        return as_intlike(val) if isinstance(val, torch.SymInt) else val

    def of(values: Any) -> Any:
        traced = [lowering.as_traced(v) if raw and isinstance(v, torch.SymInt) else v for v in values]
        return as_shape(traced)

    buffer = lowering.new_buffer(of(val.shape), val.dtype, exact_strides(val, of))
    if not is_plain(val):
        buffer = lowering.buffers[buffer.name] = replace(buffer, opaque=True)
    if lowering.device is not None and val.device != lowering.device:
        lowering.foreign.add(buffer.name)
    return TensorExpr.stored(replace(view_of(buffer), strides=dense_strides(val)), val.dtype)


def _exact_argument(lowering: Lowering, x: TensorExpr) -> View:
    """The argument with the strides it has in eager: results may depend on them (layouts, algorithms)."""
    view = x.storage
    if view is None:
        stands_in_base = x.base is not None and product(x.base.shape) == product(x.shape)
        view = lowering.realize(x, None if stands_in_base else _closed_gaps(x))
    wanted = x.layout or x.gaps
    if wanted is None or same_strides(x.shape, view.strides, wanted):
        return view
    if is_dense(x.shape, wanted):
        copied = lowering.copy(x, wanted).storage
        assert copied is not None
        return copied
    return _with_gaps(lowering, x, wanted) or view


def _closed_gaps(x: TensorExpr) -> Shape | None:
    """Dense strides in the order of eager's, where these have gaps: a head's part of a projection. Results may follow that order."""
    if x.gaps is None or 0 in x.gaps:
        return None
    strides: list[IntLike] = [1] * x.dim
    room: IntLike = 1
    for d in reversed(stride_order(x.shape, x.gaps)):
        strides[d] = room
        room = room * x.shape[d]
    return tuple(strides)


def _with_gaps(lowering: Lowering, x: TensorExpr, wanted: Shape) -> View | None:
    """A copy of `x` whose rows begin some elements apart, as where attention's mask was padded; None if gaps are most of it.

    Some kernels take aligned rows only. Dimensions of stride 0 stand for one element.
    """
    spread = x
    for dim, stride in enumerate(wanted):
        if stride == 0:
            spread = spread.view(narrow(spread.shape, dim, 0, 1))
    room: IntLike = 1
    dims = [d for d, size in enumerate(spread.shape) if size != 1]
    for d in reversed(slowest_first(dims, wanted)):
        has_gaps = not_smaller(wanted[d], room) and not_smaller(2 * room + _LARGEST_GAP, wanted[d])
        if wanted[d] != room and not has_gaps:
            return None  # elements overlap, or gaps are most of it, or either may be so
        room = wanted[d] * spread.shape[d]
    copied = lowering.copy(spread, wanted).storage
    return None if copied is None else replace(copied, shape=x.shape)


def _blas_argument(lowering: Lowering, x: TensorExpr) -> View:
    view = lowering.realize(x)
    if x.dim < 2 or lowering.buffers[view.buffer].opaque:
        return view
    (rows, columns), (outer, inner) = view.shape[-2:], view.strides[-2:]
    dense = inner == 1 or columns == 1 or outer == 1 or rows == 1
    if dense and 0 not in view.strides[-2:]:
        return view
    copied = lowering.copy(x).storage
    assert copied is not None
    return copied


def _map_tensors(value: Any, fn: Callable[[TensorExpr], Any]) -> Any:
    if isinstance(value, TensorExpr):
        return fn(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_map_tensors(v, fn) for v in value])
    return value
