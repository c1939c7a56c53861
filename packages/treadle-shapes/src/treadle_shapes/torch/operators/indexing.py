"""Reading and writing elements at indices in tensors.

Schemas do not state that eager raises for an index out of range. Operators that write copy their first argument with its strides and write
into the copy.
"""

from __future__ import annotations

from typing import Any

import torch

from treadle_shapes.torch import fake_kernels, shape_functions
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind, Raises

F = torch.nn.functional

families("index index_select take", kind=Kind.GATHER, raises=Raises.BY_VALUE, linear_in=(("self",),))
family(
    "gather",
    kind=Kind.GATHER,
    raises=Raises.BY_VALUE,
    linear_in=(("self",),),
    shape_functions=dict.fromkeys(("gather", torch.gather), shape_functions.gather),
)
family(
    "embedding",
    kind=Kind.GATHER,
    raises=Raises.BY_VALUE,
    shape_functions={F.embedding: shape_functions.embedding},
)
families("_embedding_bag _embedding_bag_forward_only take_along_dim", kind=Kind.GATHER, raises=Raises.BY_VALUE)
family("embedding_bag", raises=Raises.BY_VALUE)
family("one_hot", kind=Kind.GATHER, raises=Raises.BY_VALUE)
# The repeats must sum to the given length, and none may be negative.
families("repeat_interleave", kind=Kind.GATHER, raises=Raises.BY_VALUE)
family("masked_select", kind=Kind.GATHER, fake_correction="counts of selected elements")
family("nonzero", kind=Kind.GATHER, fake_correction="counts of nonzero elements")
families("nonzero_static _unsafe_index _unsafe_masked_index", kind=Kind.GATHER)

_SCATTER: dict[str, Any] = {"kind": Kind.SCATTER, "raises": Raises.BY_VALUE, "like_first_argument": True}
_WITH_SOURCE = {"linear_in": (("self", "src"),)}

family("scatter", overloads={"src": _WITH_SOURCE, "value": {"linear_in": (("self", "value"),)}}, **_SCATTER)
family("scatter_add", **_SCATTER, **_WITH_SOURCE)
families("index_add index_copy", linear_in=(("self", "source"),), **_SCATTER)
family("index_put", fake_correction="positions of different shapes", linear_in=(("self", "values"),), **_SCATTER)
families("scatter_reduce masked_scatter", **_SCATTER)
family(
    "index_fill",
    kind=Kind.SCATTER,
    raises=Raises.BY_VALUE,
    like_first_argument=True,
    fake_kernel=fake_kernels.index_fill,
)
families("index_reduce put", kind=Kind.SCATTER, raises=Raises.BY_VALUE)
families("_unsafe_index_put _unsafe_masked_index_put_accumulate", kind=Kind.SCATTER)
families(
    "embedding_dense_backward select_backward slice_backward unfold_backward",
    kind=Kind.SCATTER,
    decompose=True,
    linear_in=(("grad_output",), ("grad",), ("grad_in",)),
)
families("segment_reduce", kind=Kind.REDUCTION, raises=Raises.BY_VALUE)
# Lengths of a batch must be sorted and positive.
family("_pack_padded_sequence", kind=Kind.GATHER, raises=Raises.BY_VALUE, fake_correction="packed sequences")
