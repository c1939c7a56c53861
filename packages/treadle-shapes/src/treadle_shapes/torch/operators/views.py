"""Views, and the copies that stand for views.

Schemas state that a result shares memory with an argument. They do not state which elements it has (a slice drops some), whether every
strided argument has such a view, or where the view begins. `unsafe_split` and its variants return views that their schemas do not declare,
so writes to these would be lost. `_unsafe_view` does so, too, but only decompositions that handle this call it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from treadle_shapes.logic import Lt
from treadle_shapes.nodes import IntLike
from treadle_shapes.rules import maximum, minimum, where
from treadle_shapes.torch import shape_functions, view_layouts
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import ElementUse, Kind

aten = torch.ops.aten


def select_offset(offset: IntLike, size: IntLike, stride: IntLike, position: IntLike) -> Any:
    """x.select(d, i) begins at offset + (i + size if i < 0 else i) * stride."""
    return offset + _from_front(position, size) * stride


def slice_offset(offset: IntLike, size: IntLike, stride: IntLike, position: IntLike) -> Any:
    """x[start:] begins at offset + max(0, min(start + size if start < 0 else start, size)) * stride."""
    return offset + maximum(0, minimum(_from_front(position, size), size)) * stride


def _from_front(position: IntLike, size: IntLike) -> IntLike:
    return where(Lt(position, 0), position + size, position)


_KEPT: dict[str, Any] = {"element_use": ElementUse.KEPT}
_STRIDED: dict[str, Any] = {"is_strided_view": True}

# -- all elements, other sizes -----------------------------------------------------------------------------------------

# `view.dtype` reads the memory as another dtype, so neither fact holds for it.
family(
    "view",
    kind=Kind.VIEW,
    is_speculatable=True,
    shape_functions={"view": shape_functions.view, aten.view.default: view_layouts.view},
    fake_correction="view strides",
    overloads={"default": _KEPT | _STRIDED | {"reinterprets": True}},
)
family(
    "_unsafe_view",
    kind=Kind.VIEW,
    reinterprets=True,
    shape_functions={aten._unsafe_view.default: view_layouts.view},
    fake_correction="view strides",
    **_KEPT,
    **_STRIDED,
)
# A copy where no view is possible.
family(
    "reshape",
    kind=Kind.VIEW,
    reinterprets=True,
    is_speculatable=True,
    shape_functions={"reshape": shape_functions.view},
    **_KEPT,
)
families("alias detach", kind=Kind.VIEW, reinterprets=True, **_KEPT, **_STRIDED)
family(
    "permute",
    kind=Kind.VIEW,
    shape_functions={
        "permute": shape_functions.permute,
        torch.permute: shape_functions.permute_by,
        aten.permute.default: view_layouts.permute,
    },
    **_KEPT,
    **_STRIDED,
)
family(
    "transpose",
    kind=Kind.VIEW,
    shape_functions={
        **dict.fromkeys(("transpose", torch.transpose), shape_functions.transpose),
        aten.transpose.int: view_layouts.transpose,
    },
    **_KEPT,
    **_STRIDED,
)
family(
    "t",
    kind=Kind.VIEW,
    shape_functions={aten.t.default: view_layouts.transpose_matrix},
    **_KEPT,
    **_STRIDED,
)
family("squeeze", kind=Kind.VIEW, **_KEPT, **_STRIDED)
family(
    "unsqueeze",
    kind=Kind.VIEW,
    is_speculatable=True,
    shape_functions={
        **dict.fromkeys(("unsqueeze", torch.unsqueeze), shape_functions.unsqueeze),
        aten.unsqueeze.default: view_layouts.unsqueeze,
    },
    **_KEPT,
    **_STRIDED,
)
# Keeps every element, unless a size of 1 becomes 0.
family(
    "expand",
    kind=Kind.VIEW,
    keeps_index=True,
    is_speculatable=True,
    shape_functions={"expand": shape_functions.expand, aten.expand.default: view_layouts.expand},
    **_KEPT,
    **_STRIDED,
)
family("expand_as", kind=Kind.VIEW, keeps_index=True, is_speculatable=True, may_return_argument=True)

# -- some elements, or several results ---------------------------------------------------------------------------------

family(
    "slice",
    kind=Kind.VIEW,
    offset_function=slice_offset,
    overloads={"Tensor": {"fake_correction": "sizes of slices", **_STRIDED}},
)
family("select", kind=Kind.VIEW, offset_function=select_offset, overloads={"int": _STRIDED})
families("split_with_sizes chunk diagonal", kind=Kind.VIEW, **_STRIDED)
family(
    "unfold",
    kind=Kind.VIEW,
    # Its inverse, `unfold_backward`, starts from zeros and adds where windows overlap (aten/src/ATen/FunctionalInverses.cpp).
    why_not_written="elements between windows would be lost, and those in several windows added up",
    **_STRIDED,
)
family("split", kind=Kind.VIEW, overloads={"Tensor": _STRIDED})
family("unbind", kind=Kind.VIEW, overloads={"int": _STRIDED})
families(
    "unsafe_split unsafe_split_with_sizes",
    kind=Kind.VIEW,
    aliases=((0, "self"),),
    why_not_functional="it gives views that it does not declare",
    **_STRIDED,
)
family(
    "unsafe_chunk",
    kind=Kind.VIEW,
    aliases=((0, "self"),),
    why_not_functional="it gives views that it does not declare",
)
# Strides and offset are given and do not depend on the argument's.
family("as_strided", kind=Kind.VIEW)

# -- properties of Tensor ----------------------------------------------------------------------------------------------

family("numpy_T", kind=Kind.VIEW, also="T")
family("matrix_H", kind=Kind.VIEW, also="H")
families("mT mH real imag", kind=Kind.VIEW)

# -- indexing in Python ------------------------------------------------------------------------------------------------

# A view for slices, None, `...` and numbers. A gather for index tensors, which may be out of range.
family(
    "getitem",
    kind=Kind.GATHER,
    shape_functions={operator.getitem: shape_functions.getitem},
    call_forms={operator.getitem: {"is_speculatable": True}},
)
families("setitem delitem", kind=Kind.SCATTER)
