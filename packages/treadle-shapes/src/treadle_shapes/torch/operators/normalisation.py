"""Softmax and the norms.

Each element of a result depends on a whole row, which schemas do not state. `batch_norm`, `instance_norm` and `native_batch_norm` change
the running statistics in training mode, although their schemas declare no write.
"""

from __future__ import annotations

from typing import Any

import torch

from treadle_shapes.torch import shape_functions
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import ElementUse, Kind

F = torch.nn.functional
_READ: dict[str, Any] = {"element_use": ElementUse.READ}
_LINEAR = (("grad_output",),)
_STATISTICS: dict[str, Any] = {"writes": ("running_mean", "running_var"), "hides_writes": True}

family("_softmax", kind=Kind.NORMALISATION, fake_correction="dimensions out of range", **_READ)
families("_log_softmax _safe_softmax", kind=Kind.NORMALISATION, **_READ)
family("softmax", kind=Kind.NORMALISATION, shape_functions={F.softmax: shape_functions.softmax})
families("log_softmax softmin", kind=Kind.NORMALISATION)
families(
    "_softmax_backward_data _log_softmax_backward_data", kind=Kind.NORMALISATION, decompose=True, linear_in=_LINEAR
)

family("native_layer_norm", kind=Kind.NORMALISATION, is_row_major=True, **_READ)
families("native_group_norm _fused_rms_norm", kind=Kind.NORMALISATION, **_READ)
family("layer_norm", kind=Kind.NORMALISATION, shape_functions={F.layer_norm: shape_functions.layer_norm})
# The layout of one channels-last image is that of several.
family(
    "group_norm",
    kind=Kind.NORMALISATION,
    size_one_question="whether one image is channels-last",
    shape_functions={F.group_norm: shape_functions.group_norm},
)
families("rms_norm local_response_norm", kind=Kind.NORMALISATION)
families(
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward _fused_rms_norm_backward",
    kind=Kind.NORMALISATION,
    decompose=True,
)

families("batch_norm instance_norm cudnn_batch_norm", kind=Kind.NORMALISATION, **_STATISTICS)
family("native_batch_norm", kind=Kind.NORMALISATION, gives_statistics=True, **_STATISTICS)
families("_batch_norm_with_update _native_batch_norm_legit_no_training", kind=Kind.NORMALISATION)
families("_native_batch_norm_legit _native_batch_norm_legit_functional", kind=Kind.NORMALISATION, gives_statistics=True)
family("_batch_norm_with_update_functional", kind=Kind.NORMALISATION)
# ATen declares the writes of these two. In Python, one has no trailing underscore, and the arguments have another order.
family("embedding_renorm", kind=Kind.NORMALISATION, hides_writes=True)
family("_fused_moving_avg_obs_fq_helper", kind=Kind.POINTWISE, hides_writes=True)
