"""What tensors and calls are to the transforms of `torch.func` that are running. Needs torch.

vmap(f)(x)          f gets a tensor that holds x and hides one of its dimensions; `unwrapped` of it is x
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_functorch: Any = torch._C._functorch


def is_transforming() -> bool:
    """Return whether a transform is running."""
    return _functorch.peek_interpreter_stack() is not None


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside one that transforms, nested ones included, have passed to their function; any other tensor itself."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


@contextmanager
def outside_transforms() -> Iterator[None]:
    """Inside, no transform is running: a tensor that is made belongs to none."""
    layers: list[Any] = []
    while is_transforming():
        layers.append(_functorch.pop_dynamic_layer_stack())
    try:
        yield
    finally:
        for layer in reversed(layers):
            _functorch.push_dynamic_layer_stack(layer)


@contextmanager
def dispatch_keys_restored() -> Iterator[None]:
    """Restore this thread's dispatch keys afterwards. An exception that passes through a transform may leave them as they were inside,
    and then eager operators fail (torch 2.13: `_fw_primal` of a tensor in nested transforms)."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(include, exclude):
        yield


__all__ = ["dispatch_keys_restored", "is_transforming", "outside_transforms", "unwrapped"]
