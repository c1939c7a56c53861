"""Packed weights of convolutions whose images change their size: one for each layout that oneDNN wants.

    graph    p = pack(w, ..., sizes of the first call);  y = mkldnn._convolution_pointwise(x, p, ...)
    call     y = mkldnn._convolution_pointwise(x, p's pack for x.shape, ...)

oneDNN has several implementations of a convolution, and which one it takes depends on the sizes; each wants the weights in blocks of its
own. Given others, it computes without vectors. Measured with PyTorch 2.13 on an AMD EPYC with AVX2, one thread: 512 channels of 28 by 28,
kernels of 3 by 3: 43 ms with their own pack, 189 with that for 14 by 14; rows of 28, kernels of 4, stride 2: 0.6 and 79 ms. In 85 of 614
pairs of sizes (kernels of 1 to 8, 32 to 512 channels) the other size's pack was more than three times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_MOST_SIZES = 256


class PacksAtSizes:
    """The packs of one weight. pack: of the weight and the geometry, which ends with the sizes of the image."""

    __slots__ = ("_by_layout", "_by_size", "_geometry", "_pack", "_weight")

    def __init__(self, pack: Callable[..., torch.Tensor], weight: torch.Tensor, geometry: tuple[Any, ...]):
        self._pack = pack
        self._weight = weight
        self._geometry = geometry
        self._by_size: dict[tuple[int, ...], torch.Tensor] = {}
        self._by_layout: dict[bytes, torch.Tensor] = {}

    def at(self, size: tuple[int, ...]) -> torch.Tensor:
        """The pack for images of this size. Packs in the same layout are one tensor."""
        found = self._by_size.get(size)
        if found is None:
            made = self._pack(self._weight, *self._geometry, list(size))
            found = self._by_layout.setdefault(_layout(made), made)
            if len(self._by_size) >= _MOST_SIZES:  # sizes that never come back
                self._by_size.clear()
            self._by_size[size] = found
        return found


def _layout(pack: torch.Tensor) -> bytes:
    """What tells the layout of an opaque tensor: oneDNN's description of its memory."""
    return bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(pack).tolist())


def pack_at_sizes(pack: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function that packs as `pack` does, and leaves with the result what makes the packs for other sizes."""

    def packed_at_sizes(weight: torch.Tensor, *geometry: Any) -> torch.Tensor:
        packs = PacksAtSizes(pack, weight, geometry[:-1])
        made = packs.at(tuple(geometry[-1]))
        made.packs_at_sizes = packs  # type: ignore[attr-defined]
        return made

    return packed_at_sizes


def _at_size(operator: str, weight_at: int) -> Callable[..., torch.Tensor]:
    """The operator of mkldnn with the pack for the size of its first argument."""

    def convolve(image: torch.Tensor, *args: Any) -> torch.Tensor:
        packs = getattr(args[weight_at], "packs_at_sizes", None)
        if packs is not None:
            args = (*args[:weight_at], packs.at(tuple(image.shape)), *args[weight_at + 1 :])
        return overload(image, *args)

    packet, name = operator.split(".")
    overload = getattr(getattr(torch.ops.mkldnn, packet), name)
    return convolve


# By operator of mkldnn, the position of its weight behind the image.
_WEIGHTS = {
    "_convolution_pointwise.default": 0,
    "_convolution_pointwise.binary": 1,
    "_convolution_transpose_pointwise.default": 0,
}


def externs_at_sizes() -> dict[str, Callable[..., torch.Tensor]]:
    """What the host calls for each operator that takes packed weights; nothing where PyTorch has been built without oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return {}
    return {f"mkldnn.{operator}": _at_size(operator, weight_at) for operator, weight_at in _WEIGHTS.items()}
