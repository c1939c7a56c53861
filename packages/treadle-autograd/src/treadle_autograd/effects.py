"""Operators that raise for some values of their tensors: calls that must run even if nobody uses what they give.

    y = x[i]                 # IndexError for some i
    z = torch.linalg.inv(a)  # LinAlgError for some a
    return x + 1             # eager raises all the same

Everything else that eager refuses is refused while tracing, by the fake kernels; pointwise operators and reductions raise for no values,
integer division excepted. A number that a tensor's dtype cannot hold (`x.fill_(1e300)`) raises, too: `held_condition`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.expr import And, Ge, Le, Or
from treadle_shapes.floats import FloatExpr, compare, same

# Found in aten/src/ATen/native by their checks on elements (TORCH_CHECK_INDEX, TORCH_CHECK on values, LAPACK's `info`).
_INDEXING = """
index index_select gather scatter scatter_add scatter_reduce index_put index_add index_copy index_fill index_reduce take put embedding
_embedding_bag _embedding_bag_forward_only max_unpool2d max_unpool3d masked_scatter repeat_interleave segment_reduce
"""
_LOSSES = """
nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward _ctc_loss binary_cross_entropy
"""
_LINEAR_ALGEBRA = """
cholesky cholesky_inverse linalg_cholesky_ex linalg_inv_ex linalg_lu_factor_ex linalg_ldl_factor_ex _linalg_solve_ex _linalg_eigh
_linalg_svd linalg_eig linalg_eigvals _linalg_eigvals linalg_lstsq
"""
_COUNTING = "bincount histc histogram _histogramdd_from_bin_cts _histogramdd_bin_edges quantile nanquantile"
_OTHERS = """
fake_quantize_per_channel_affine_cachemask _pack_padded_sequence sparse_coo_tensor sparse_compressed_tensor
"""
_BY_VALUE = frozenset(" ".join((_INDEXING, _LOSSES, _LINEAR_ALGEBRA, _COUNTING, _OTHERS)).split())
_DIVISIONS = frozenset({"div", "floor_divide", "remainder", "fmod"})


def may_raise(func: Any, args: Sequence[Any], result: Any) -> bool:
    """Whether a call of the operator `func` raises for some values of its tensors. `result`: its fake result."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return False
    name = func._schema.name.removeprefix("aten::")
    if name in _DIVISIONS:
        integral = isinstance(result, torch.Tensor) and not result.dtype.is_floating_point and not result.is_complex()
        return integral and not (isinstance(args[1], int) and args[1] != 0)
    return name in _BY_VALUE


# ---- numbers that a dtype cannot hold

# Operator -> arguments that it converts to the dtype of its result, or raises (`Scalar::to`, c10/core/Scalar.h).
_HELD: dict[str, tuple[str, ...]] = {
    "fill": ("value",),
    "full": ("fill_value",),
    "full_like": ("fill_value",),
    "new_full": ("fill_value",),
    "scalar_tensor": ("s",),  # the other branch of `where`; a low float rounds it
    "masked_fill": ("value",),
    "constant_pad_nd": ("value",),
    "clamp": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
    "hardtanh": ("min_val", "max_val"),
    "threshold": ("value",),
    "add": ("alpha",),
    "sub": ("alpha",),
    "rsub": ("alpha",),
}
# The same, to the dtype that they compute in: float32 for a half or a bfloat16.
_COMPUTED: dict[str, tuple[str, ...]] = {
    "leaky_relu": ("negative_slope",),
    "threshold": ("threshold",),
    "addcmul": ("value",),
    "addcdiv": ("value",),
    "elu": ("alpha", "scale", "input_scale"),
    "celu": ("alpha",),
    "softplus": ("beta", "threshold"),
    "hardshrink": ("lambd",),
    "lerp": ("weight",),
}
# What `torch.tensor(number)` is traced as: it rounds the number, to infinity if need be.
ROUNDING = frozenset({torch.tensor, torch.full})
_LOW_FLOATS = frozenset({torch.float16, torch.bfloat16})


def held_numbers(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[tuple[Any, torch.dtype]]:
    """The numbers among the arguments of a call that a dtype must be able to hold, and that dtype."""
    name = func._schema.name.removeprefix("aten::")
    held, computed = _HELD.get(name, ()), _COMPUTED.get(name, ())
    if not (held or computed) or not isinstance(result, torch.Tensor):
        return
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in held or argument.name in computed:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(value, bool):
                low = result.dtype in _LOW_FLOATS
                if not (low and name == "scalar_tensor"):
                    yield value, torch.float32 if low and argument.name in computed else result.dtype


def held_condition(value: Any, dtype: torch.dtype) -> Any:
    """Whether `dtype` holds a number (an int, a float, or an expression), as c10::overflows has it: True, False or a BoolExpr.

    Floats hold infinity and NaN; an int may be as far below zero as an unsigned dtype reaches above, and wraps.
    """
    if dtype in (torch.bool, torch.int64) and not isinstance(value, (float, FloatExpr)):
        return True
    if dtype == torch.bool or dtype.is_complex:
        return True
    info: Any = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if isinstance(value, (float, FloatExpr)):
        return _held_float(value, float(info.min), float(info.max), dtype.is_floating_point)
    low, high = int(info.min) or -int(info.max), int(info.max)
    if isinstance(value, int):
        return low <= value <= high
    return True if high > 2**63 else And(Ge(value, low), Le(value, high))


def _held_float(value: Any, low: float, high: float, unbounded: bool) -> Any:
    if isinstance(value, float):
        return (unbounded and not math.isfinite(value)) or low <= value <= high
    inside = And(compare("ge", value, low), compare("ge", high, value))
    return Or(inside, *[same(value, x) for x in (math.inf, -math.inf, math.nan)]) if unbounded else inside


_C_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.int16: "int16_t",
    torch.int32: "int",
    torch.int64: "int64_t",
}


def overflow_message(dtype: torch.dtype) -> str:
    """What eager says of a number that a dtype cannot hold."""
    return f"value cannot be converted to type {_C_NAMES.get(dtype, dtype)} without overflow"
