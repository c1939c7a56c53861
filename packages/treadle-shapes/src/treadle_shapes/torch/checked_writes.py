"""Answers for PyTorch's functionalisation, which checks every in-place operator on tensors without elements. Needs torch.

    with quick_checks():
        functional.hardswish_()     # the check takes 2 us; PyTorch's decomposition of hardswish_ would run, 1 ms

The check is a call of the operator itself, whose kernel for such tensors is often a decomposition in Python. A pointwise operator can
write its result to a dense tensor of floats if the other tensors are of the same dtype and the same sizes, or numbers: the check finds
nothing. What the functional operator refuses raises afterwards, when that one runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import global_decomposition_table

from treadle_shapes.fork import held_during_fork
from treadle_shapes.torch.operators import Kind, operator

aten = torch.ops.aten
_PLAIN = (bool, int, float, str, type(None))
_KERNELS = (
    "meta",
    "post_autograd",
    "pre_autograd",
)  # where torch/_meta_registrations.py looks for a kernel, in this order

_lock = held_during_fork(threading.Lock())
_libraries: list[torch.library.Library] = []  # a library takes its kernels along when it goes


class _State(threading.local):
    is_quick = False


_state = _State()


@contextmanager
def quick_checks() -> Iterator[None]:
    """Inside, in this thread, in-place operators on tensors without elements do nothing where they can tell so from their arguments."""
    install()
    before, _state.is_quick = _state.is_quick, True
    try:
        yield
    finally:
        _state.is_quick = before


def overloads() -> list[torch._ops.OpOverload]:
    """The in-place pointwise operators whose kernels for tensors without elements PyTorch has written in Python."""
    found: list[torch._ops.OpOverload] = []
    for key in torch.library._impls:  # type: ignore[attr-defined]
        namespace, name, dispatch_key = key.split("/")
        packet, _, overload = name.partition(".")
        if namespace == "aten" and dispatch_key == "Meta" and packet.endswith("_") and hasattr(aten, packet):
            found.append(getattr(getattr(aten, packet), overload or "default"))
    return [op for op in found if _writes_first_argument(op) and _kernel(op) is not None]


def _writes_first_argument(op: torch._ops.OpOverload) -> bool:
    record = operator(op)
    if record is None or record.kind is not Kind.POINTWISE or record.is_random:
        return False
    first, *others = op._schema.arguments
    return bool(first.is_write) and not any(argument.is_write for argument in others)


def _kernel(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    return next((table[op] for name in _KERNELS if op in (table := global_decomposition_table[name])), None)


def install() -> None:
    """Put a kernel in front of PyTorch's for each of the `overloads`, once per process."""
    with _lock:
        if _libraries:
            return
        library = torch.library.Library("aten", "IMPL", "Meta")
        for op in overloads():
            kernel = _kernel(op)
            assert kernel is not None
            library.impl(op, _in_front_of(kernel))
        _libraries.append(library)


def _in_front_of(original: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(written: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _state.is_quick and _finds_nothing(written, args, kwargs):
            return written
        return original(written, *args, **kwargs)

    return kernel


def _finds_nothing(written: torch.Tensor, args: Any, kwargs: Any) -> bool:
    if not (_is_static(written) and written.is_floating_point()):
        return False
    if not (written.is_contiguous() or written.is_contiguous(memory_format=torch.channels_last)):
        return False
    for value in (*args, *kwargs.values()):
        if type(value) is torch.Tensor:
            if not _is_static(value) or value.dtype is not written.dtype or value.shape != written.shape:
                return False
        elif not isinstance(value, _PLAIN):
            return False
    return True


def _is_static(tensor: torch.Tensor) -> bool:
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return is_plain and not tensor._has_symbolic_sizes_strides  # type: ignore[attr-defined]


__all__ = ["install", "overloads", "quick_checks"]
