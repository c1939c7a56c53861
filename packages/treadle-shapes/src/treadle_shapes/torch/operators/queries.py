"""Questions about a tensor's metadata.

Schemas do not distinguish questions about sizes from questions about elements (`item`). Answers that depend on strides differ at sizes
of 1, where strides have no meaning.
"""

from __future__ import annotations

from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind

families(
    """
    device dim sym_numel numel is_floating_point is_complex is_signed is_inference is_conj is_neg is_leaf
    result_type can_cast
    """,
    kind=Kind.QUERY,
    is_query=True,
)
family("size", kind=Kind.QUERY, is_query=True, query_method="size")
family("sym_size", kind=Kind.QUERY, is_query=True, query_method="size")
families("stride sym_stride", kind=Kind.QUERY, is_query=True, reads_layout=True, query_method="stride")
families(
    "storage_offset sym_storage_offset",
    kind=Kind.QUERY,
    is_query=True,
    reads_layout=True,
    query_method="storage_offset",
)
families(
    "is_contiguous is_non_overlapping_and_dense is_same_size is_set_to sym_is_contiguous",
    kind=Kind.QUERY,
    is_query=True,
    reads_layout=True,
)
