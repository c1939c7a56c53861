"""Operators that stay whole where sizes are symbolic, as they do where sizes are numbers.

    F.interpolate(x, scale_factor=2.0)      upsample_nearest2d(x, [2 * h, 2 * w], 2.0, 2.0)
                                            and not: arange, multiply, round, index - of which no kernel makes anything good again

PyTorch's Python dispatcher, which symbolic sizes need (`treadle_shapes.torch.symbolic_dispatch`), takes interpolations and a few others
apart before functionalisation sees them. `preserved_ops` leaves out these Python kernels (`OpOverload.py_kernels`) for as long as a graph
is traced; the overloads `vec`, whose C++ kernels read sizes as numbers, work out the sizes in Python and call the operator proper.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

aten = torch.ops.aten
# Further operators with Python kernels that take them apart, which the operator samples show.
_OTHERS = (
    aten.hardshrink.default,
    aten.softshrink.default,
    aten.multi_margin_loss.default,
    aten.multilabel_margin_loss_forward.default,
)
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


def _output_size(x: torch.Tensor, size: Sequence[Any] | None, factors: Sequence[float] | None) -> list[Any]:
    """The sizes of the result behind batch and channels (aten/src/ATen/native/UpSample.cpp, compute_output_size)."""
    if size is not None:
        return list(size)
    assert factors is not None
    whole = [int(f) if f == int(f) else f for f in factors]
    return [n * f if isinstance(f, int) else torch.sym_int(n * f) for n, f in zip(x.shape[2:], whole, strict=True)]


def _nearest(op: Any) -> Callable[..., Any]:
    def upsample(x: torch.Tensor, output_size: Any, scale_factors: Any) -> torch.Tensor:
        return op(x, _output_size(x, output_size, scale_factors), *(scale_factors or ()))

    return upsample


def _interpolating(op: Any) -> Callable[..., Any]:
    def upsample(x: torch.Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> torch.Tensor:
        return op(x, _output_size(x, output_size, scale_factors), align_corners, *(scale_factors or ()))

    return upsample


@functools.cache
def _kernels() -> dict[Any, Callable[..., Any] | None]:
    """Overload -> the Python kernel it gets, None for none."""
    found: dict[Any, Callable[..., Any] | None] = {}
    nearest = [f"{kind}{d}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)]
    others = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
    for names, make in ((nearest, _nearest), (others, _interpolating)):
        for name in names:
            packet = getattr(aten, name)
            found[packet.vec], found[packet.default] = make(packet.default), None
    return found | dict.fromkeys(_OTHERS)


_lock = threading.Lock()
_inside = 0
_theirs: list[tuple[Any, Any, Any]] = []


def _replace(op: Any, key: Any, kernel: Any) -> None:
    if kernel is None:
        op.py_kernels.pop(key, None)
    else:
        op.py_kernels[key] = kernel
    op._dispatch_cache.clear()


@contextmanager
def preserved_ops() -> Iterator[None]:
    """Inside, these operators are not taken apart by PyTorch's Python dispatcher (in any thread)."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            for op, kernel in _kernels().items():
                for key in _KEYS:
                    _theirs.append((op, key, op.py_kernels.get(key)))
                    _replace(op, key, kernel)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            while _inside == 0 and _theirs:
                _replace(*_theirs.pop())
