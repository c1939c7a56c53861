"""Reductions and scans.

The tag `reduction` marks most reductions. It does not state which have no value for no elements (eager raises, where a kernel would
return a number), nor which read every element of their argument: the first NaN of a row decides its `argmax`.
"""

from __future__ import annotations

import torch

from treadle_shapes.torch import shape_functions
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import ElementUse, Kind

_READ = {"element_use": ElementUse.READ}
_LINEAR = (("self",),)

family("sum", kind=Kind.REDUCTION, linear_in=_LINEAR, overloads={"default": _READ, "dim_IntList": _READ})
family(
    "mean",
    kind=Kind.REDUCTION,
    linear_in=_LINEAR,
    shape_functions=dict.fromkeys(("mean", torch.mean), shape_functions.mean),
    overloads={"default": _READ, "dim": _READ},
)
families("amax amin", kind=Kind.REDUCTION, no_empty_over="dim", **_READ)
# Of a million numbers in float32, float64 and bfloat16 along either dimension, eager takes 12 to 32 times as long as a generated kernel for
# variances, 3 to 35 times for positions, 6 to 13 times for `any` and `all` (one thread, AVX-512).
_FEW_VECTORS = {"elements_per_saved_call": 1500}
families("var var_mean", kind=Kind.REDUCTION, elements_per_saved_call=300, overloads={"correction": _READ})
families("std std_mean", kind=Kind.REDUCTION, elements_per_saved_call=300)
_POSITIONS = {"no_empty_over": "dim", **_FEW_VECTORS}
families("max min", kind=Kind.REDUCTION, overloads={"default": {"no_empty_over": ""}, "dim": _POSITIONS})
# The median of no elements is NaN, or the smallest integer.
family("median", kind=Kind.REDUCTION, overloads={"dim": {"no_empty_over": "dim"}})
families("argmax argmin", kind=Kind.REDUCTION, **_POSITIONS)
families("any all count_nonzero", kind=Kind.REDUCTION, **_FEW_VECTORS)
families("prod aminmax nansum nanmedian norm", kind=Kind.REDUCTION)
family("logsumexp", kind=Kind.REDUCTION, fake_correction="no dimensions")
families("linalg_vector_norm dist hash_tensor allclose equal trace_backward", kind=Kind.REDUCTION)
families("trace", kind=Kind.REDUCTION, decompose=True)
families("renorm", kind=Kind.REDUCTION, decompose=True)
families("_cdist_forward _pdist_forward cdist pdist", kind=Kind.REDUCTION)
family("cumsum", kind=Kind.SCAN, linear_in=_LINEAR)
families("cumprod cummax cummin logcumsumexp", kind=Kind.SCAN)
