"""Sparse tensors.

Constructors raise for indices out of range. The number of elements that a sparse tensor stores is not traced, so the sizes of its parts
are unknown.
"""

from __future__ import annotations

from treadle_shapes.torch.operators.declare import families
from treadle_shapes.torch.operators.record import Kind, Raises

families("sparse_coo_tensor sparse_compressed_tensor", kind=Kind.SPARSE, raises=Raises.BY_VALUE)
families(
    """
    values indices crow_indices col_indices ccol_indices row_indices _values _indices _nnz
    values_copy indices_copy crow_indices_copy col_indices_copy ccol_indices_copy row_indices_copy
    _values_copy _indices_copy
    """,
    kind=Kind.SPARSE,
    is_sparse_part=True,
)
families("_to_sparse _to_dense sparse_sampled_addmm _sparse_mm_reduce_impl coalesce sparse_mask", kind=Kind.SPARSE)
