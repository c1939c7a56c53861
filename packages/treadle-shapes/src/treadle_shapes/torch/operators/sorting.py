"""Sorting, selecting by rank, searching and counting.

Schemas do not state which operators raise for element values: `bincount` for negative ones, histograms and quantiles for values out of
their range.
"""

from __future__ import annotations

from treadle_shapes.torch import functional_forms
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind, Raises

_ASKED_FOR_A_DIMENSION = {"fake_correction": "dimensions out of range"}
family(
    "sort",
    kind=Kind.SORT,
    like_first_argument=True,
    overloads={"default": _ASKED_FOR_A_DIMENSION, "stable": _ASKED_FOR_A_DIMENSION},
)
families("argsort msort topk searchsorted bucketize _unique2", kind=Kind.SORT)
family("isin", kind=Kind.SORT, is_row_major=True)
family("unique_dim", kind=Kind.SORT, fake_correction="unique slices")
family("unique_consecutive", kind=Kind.SORT, fake_correction="unique runs of slices")
families("kthvalue mode", kind=Kind.SORT, no_empty_over="dim")
family("quantile", kind=Kind.SORT, raises=Raises.BY_VALUE, fake_function=functional_forms.quantile)
family("nanquantile", kind=Kind.SORT, raises=Raises.BY_VALUE, fake_function=functional_forms.nanquantile)
families(
    "bincount histc histogram _histogramdd_from_bin_cts _histogramdd_bin_edges", kind=Kind.SORT, raises=Raises.BY_VALUE
)
family("_histogramdd_from_bin_tensors", kind=Kind.SORT)
