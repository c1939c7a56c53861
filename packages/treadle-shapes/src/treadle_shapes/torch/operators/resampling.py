"""Interpolation, padding by reflection, and sampling of grids.

    F.interpolate(x, scale_factor=2.0)      upsample_nearest2d(x, [2 * h, 2 * w], 2.0, 2.0)
                                            not arange, multiply, round, index, which no compiler fuses back

PyTorch's Python dispatcher would decompose the interpolations under symbolic sizes, so they are `preserved`.
"""

from __future__ import annotations

from treadle_shapes.torch.operators.declare import families
from treadle_shapes.torch.operators.record import Kind

families(
    """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    """,
    kind=Kind.RESAMPLING,
    preserved=True,
    fake_correction="nearest neighbours of no images",
)
families(
    """
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    """,
    kind=Kind.RESAMPLING,
    preserved=True,
)
families("_upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d", kind=Kind.RESAMPLING)
families("reflection_pad1d reflection_pad2d reflection_pad3d", kind=Kind.RESAMPLING)
families("replication_pad1d replication_pad2d replication_pad3d", kind=Kind.RESAMPLING)

# PyTorch's fake kernels of these take no symbolic sizes. The gradient of some has the memory format of what it is computed from.
families(
    """
    upsample_nearest1d_backward upsample_nearest3d_backward
    _upsample_nearest_exact1d_backward _upsample_nearest_exact3d_backward
    upsample_linear1d_backward upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward
    """,
    fake_correction="gradients of resampling",
)
families(
    "upsample_bilinear2d_backward upsample_trilinear3d_backward", fake_correction="formats of resampling gradients"
)
