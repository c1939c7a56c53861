"""Convolutions.

The layout of the result depends on the layouts of image and weight and on the kernel that eager chooses. PyTorch's fake kernels skip that
step for sizes without hints; `corrected_kernels` adds it ("layouts of convolutions").
"""

from __future__ import annotations

from treadle_shapes.torch.operators.declare import families, family
from treadle_shapes.torch.operators.record import Kind

_LAYOUT = {"fake_correction": "layouts of convolutions"}

family("convolution", kind=Kind.CONVOLUTION, overloads={"default": _LAYOUT})
# `_convolution` has a fake kernel from torch 2.13 on. Earlier releases decompose it.
family("_convolution", kind=Kind.CONVOLUTION, overloads={"default": _LAYOUT, "deprecated": _LAYOUT})
family(
    "convolution_backward",
    kind=Kind.CONVOLUTION,
    overloads={"default": _LAYOUT},
    linear_in=(("grad_output",),),
)
families("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc", kind=Kind.CONVOLUTION)
families("mkldnn_convolution convolution_overrideable thnn_conv2d slow_conv3d", kind=Kind.CONVOLUTION)
family("im2col", kind=Kind.GATHER)
family("col2im", kind=Kind.SCATTER)
