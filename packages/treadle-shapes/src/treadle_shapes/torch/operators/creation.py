"""New tensors and copies.

Schemas do not state that results of the `*_like` operators and of `clone` have the strides of the first argument, nor that eager refuses
a number which the dtype of the result cannot hold. `torch.tensor` rounds such a number. `torch.full` of no dimensions replaces
`torch.tensor` in graphs, so it rounds, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.torch import fake_kernels, functional_forms, shape_functions
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import ElementUse, Kind

_LINEAR = (("self",),)
_LINEAR_PART = (("self", "src"),)

family("arange", kind=Kind.CREATION, is_speculatable=True)
family("ones", kind=Kind.CREATION, is_speculatable=True, filled_with=1)
family("zeros", kind=Kind.CREATION, is_speculatable=True, filled_with=0)
family("new_ones", kind=Kind.CREATION, filled_with=1)
family("new_zeros", kind=Kind.CREATION, filled_with=0)
families("eye tril_indices triu_indices", kind=Kind.CREATION)
families("empty empty_strided empty_permuted new_empty new_empty_strided", kind=Kind.CREATION, is_uninitialised=True)
families("linspace logspace", kind=Kind.CREATION, decompose=True)
family("tensor", kind=Kind.CREATION, rounds_numbers=True)
family(
    "full",
    kind=Kind.CREATION,
    is_speculatable=True,
    filled_with="fill_value",
    held_by_result=("fill_value",),
    call_forms={torch.full: {"rounds_numbers": True}},
)
family("new_full", kind=Kind.CREATION, filled_with="fill_value", held_by_result=("fill_value",))
# The other branch of `where`.
family("scalar_tensor", kind=Kind.CREATION, filled_with="s", held_by_result=("s",), rounds_to_low_float=True)

_LIKE: dict[str, Any] = {"kind": Kind.CREATION, "like_first_argument": True, "element_use": ElementUse.IGNORED}

family("ones_like", filled_with=1, **_LIKE)
family("zeros_like", filled_with=0, **_LIKE)
family("empty_like", is_uninitialised=True, **_LIKE)
family("full_like", filled_with="fill_value", held_by_result=("fill_value",), **_LIKE)
family(
    "fill",
    kind=Kind.POINTWISE,
    like_first_argument=True,
    element_use=ElementUse.IGNORED,
    held_by_result=("value",),
)
family("_new_zeros_with_same_feature_meta", kind=Kind.CREATION, fake_correction="zeros of tangents")
family("fill_diagonal", fake_function=functional_forms.fill_diagonal_)
family("quantize_per_tensor", fake_function=fake_kernels.quantised)
# Only sizes, strides and dtype of the first argument matter.
family("copy", kind=Kind.COPY, element_use=ElementUse.IGNORED, linear_in=(("src",),))
family("zero", kind=Kind.POINTWISE, element_use=ElementUse.IGNORED)

family("clone", kind=Kind.COPY, like_first_argument=True, element_use=ElementUse.KEPT, linear_in=_LINEAR)
families("lift_fresh lift", kind=Kind.VIEW, may_return_argument=True, element_use=ElementUse.KEPT)
family("lift_fresh_copy", kind=Kind.COPY, element_use=ElementUse.KEPT)
family(
    "_to_copy",
    kind=Kind.POINTWISE,
    iterates=False,
    like_first_argument=True,
    element_use=ElementUse.KEPT,
    linear_in=_LINEAR,
)
family("constant_pad_nd", kind=Kind.COPY, held_by_result=("value",), linear_in=(("self", "value"),))
family(
    "cat",
    kind=Kind.COPY,
    also="concat concatenate",
    linear_in=(("tensors",),),
    shape_functions={torch.cat: shape_functions.cat},
)
family("stack", kind=Kind.COPY, linear_in=(("tensors",),))
families("repeat tril triu", kind=Kind.COPY, linear_in=_LINEAR)
families("tile _chunk_cat narrow_copy", kind=Kind.COPY)
families("complex polar", kind=Kind.POINTWISE)
families("diag_embed block_diag channel_shuffle pixel_shuffle rot90", kind=Kind.COPY, decompose=True)
family("pixel_unshuffle", kind=Kind.COPY)
_REPLACES_PART: Mapping[str, Any] = {"kind": Kind.COPY, "replaces_part": True, "linear_in": _LINEAR_PART}
family("select_scatter", fake_correction="selections of another size", **_REPLACES_PART)
family("diagonal_scatter", fake_correction="diagonals of another size", **_REPLACES_PART)
family("slice_scatter", fake_correction="slices of another size", **_REPLACES_PART)


def _as_strided_scatter(
    self: torch.Tensor,
    src: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """The operator for a first argument that begins anywhere in its storage. ATen's own counts the offset from the start of the storage,
    all of which it copies (`as_strided_scatter`, aten/src/ATen/native/TensorShape.cpp). An expanded one it copies element by element."""
    if any(count > 1 and step == 0 for count, step in zip(self.shape, self.stride(), strict=True)):
        result = self.clone()
    else:
        result = torch.empty_strided(self.shape, self.stride(), dtype=self.dtype, device=self.device).copy_(self)
    result.as_strided(size, stride, storage_offset or 0).copy_(src)
    return result


family(
    "as_strided_scatter",
    kind=Kind.COPY,
    replaces_part=True,
    binding=_as_strided_scatter,
    linear_in=_LINEAR_PART,
)
family("flip", kind=Kind.COPY, like_first_argument=True, linear_in=_LINEAR)
# Eager's strides are those of `narrow` and `cat`; see `fake_kernels.roll`.
family("roll", kind=Kind.COPY, fake_kernel=fake_kernels.roll, linear_in=_LINEAR)

# -- conversions: give their argument when there is nothing to do ------------------------------------------------------

family(
    "contiguous",
    kind=Kind.COPY,
    may_return_argument=True,
    is_speculatable=True,
    keeps_index=True,
    shape_functions={"contiguous": shape_functions.contiguous},
)
family("to", kind=Kind.POINTWISE, may_return_argument=True, shape_functions={"to": shape_functions.convert})
for _name, _dtype in {"float": torch.float32, "long": torch.int64, "bool": torch.bool}.items():
    family(
        _name,
        kind=Kind.POINTWISE,
        is_pure=True,  # there is no schema to tell
        may_return_argument=True,
        shape_functions={_name: shape_functions.to_dtype(_dtype)},
    )
families("type_as", kind=Kind.POINTWISE, may_return_argument=True)
families(
    "double half bfloat16 int char byte short cdouble cfloat chalf",
    kind=Kind.POINTWISE,
    is_pure=True,
    may_return_argument=True,
)
families("cpu cuda", kind=Kind.COPY, may_return_argument=True)
families("resolve_conj resolve_neg", kind=Kind.COPY, may_return_argument=True)
