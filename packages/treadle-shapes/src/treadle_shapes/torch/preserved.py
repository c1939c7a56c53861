"""Keeps operators whole under symbolic sizes, as they are under constant sizes (`Operator.preserved`). Needs torch.

    F.interpolate(x, scale_factor=2.0)      upsample_nearest2d(x, [2 * h, 2 * w], 2.0, 2.0)
                                            not arange, multiply, round, index, which no compiler fuses back

Symbolic sizes need PyTorch's Python dispatcher (`symbolic_dispatch`), which decomposes these operators before functionalisation.
`preserved_operators` removes their Python kernels (`OpOverload.py_kernels`) while a graph is traced. The C++ kernels of the overloads
`vec` read sizes as plain ints, so these overloads get a Python kernel that computes the sizes and calls the default overload.

PyTorch's Python kernel of dropout draws random numbers where everything is dropped, which eager does not: it is replaced, too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from treadle_shapes.fork import held_during_fork
from treadle_shapes.torch.operators import families_with

_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


def _output_size(x: torch.Tensor, size: Sequence[Any] | None, factors: Sequence[float] | None) -> list[Any]:
    """Return the result's sizes after batch and channels (aten/src/ATen/native/UpSample.cpp, compute_output_size)."""
    if size is not None:
        return list(size)
    assert factors is not None, "an interpolation has sizes or factors"
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


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """aten/src/ATen/native/Dropout.cpp, _dropout_impl, where it does not draw."""
    if train and p == 1:
        return x.mul(torch.zeros((), dtype=x.dtype, device=x.device))
    return torch.ops.aten.native_dropout(x, p, train)[0] if train and p != 0 else x.clone()


@functools.cache
def kernels() -> dict[Any, Callable[..., Any] | None]:
    """Return overload -> its Python kernel inside `preserved_operators`, None for no kernel."""
    found: dict[Any, Callable[..., Any] | None] = {}
    for family in families_with("preserved"):
        packet = getattr(torch.ops.aten, family)
        found[packet.default] = None
        if "vec" in packet.overloads():
            has_corners = any(argument.name == "align_corners" for argument in packet.vec._schema.arguments)
            found[packet.vec] = (_interpolating if has_corners else _nearest)(packet.default)
    found[torch.ops.aten.dropout.default] = _dropout
    return found


_lock = held_during_fork(threading.Lock())
_inside = 0
_theirs: list[tuple[Any, Any, Any]] = []


def _replace(op: Any, key: Any, kernel: Any) -> None:
    if kernel is None:
        op.py_kernels.pop(key, None)
    else:
        op.py_kernels[key] = kernel
    op._dispatch_cache.clear()


@contextmanager
def preserved_operators() -> Iterator[None]:
    """Inside, PyTorch's Python dispatcher does not decompose these operators.

    Python kernels belong to the process. A torch.compile that traces in another thread meanwhile sees these operators whole, too; its graph
    computes the same. A kernel that distinguishes the callers cannot replace this, because no Python kernel can do what a missing one does:
    choose a C++ kernel by dispatch key.
    """
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            for op, kernel in kernels().items():
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


__all__ = ["kernels", "preserved_operators"]
