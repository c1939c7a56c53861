"""Pooling.

`adaptive_avg_pool` asks for the number of images only to choose the layout of its result. `max_unpool` raises for an index out of range.
"""

from __future__ import annotations

from torch.nn import functional as F

from treadle_shapes.torch import fake_kernels
from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind, Raises

families("avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d", kind=Kind.POOLING)
families("max_pool2d_with_indices max_pool3d_with_indices", kind=Kind.POOLING)
# The functions draw the samples that the operators are given.
for _name in ("fractional_max_pool2d", "fractional_max_pool3d"):
    family(_name, kind=Kind.POOLING, call_forms={getattr(F, _name): {"is_random": True, "is_pure": False}})
families("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", kind=Kind.POOLING)
families(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d",
    kind=Kind.POOLING,
    size_one_question="whether one image is channels-last",
)
families("_adaptive_avg_pool2d _adaptive_avg_pool3d max_pool2d_with_indices_backward", kind=Kind.POOLING)
family("max_unpool2d", kind=Kind.POOLING, raises=Raises.BY_VALUE, fake_kernel=fake_kernels.max_unpool2d)
family("max_unpool3d", kind=Kind.POOLING, raises=Raises.BY_VALUE)
