"""Questions about tensors: about their metadata, and about the tensor objects themselves.

Schemas do not distinguish questions about sizes from questions about elements (`item`). Answers that depend on strides differ at sizes
of 1, where strides have no meaning. Nor do they tell which answers follow from what guards compare (sizes, strides, dtype, ...).
"""

from __future__ import annotations

from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind

families(
    """
    device dim sym_numel numel is_floating_point is_complex is_signed is_conj is_neg is_leaf
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
    asks_about_object=True,
    query_method="storage_offset",
)
families(
    "is_contiguous is_non_overlapping_and_dense is_same_size sym_is_contiguous",
    kind=Kind.QUERY,
    is_query=True,
    reads_layout=True,
)
family("is_set_to", kind=Kind.QUERY, is_query=True, reads_layout=True, has_unguarded_answer=True)
family("is_inference", kind=Kind.QUERY, is_query=True, asks_about_object=True)
families("_is_view is_shared is_pinned", kind=Kind.QUERY, asks_about_object=True)
families("data_ptr _version _is_zerotensor", kind=Kind.QUERY, has_unguarded_answer=True)
