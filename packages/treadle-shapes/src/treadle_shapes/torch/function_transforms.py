"""What tensors and calls are to the transforms of `torch.func` that are running. Needs torch.

vmap(f)(x)          f gets a tensor that holds x and hides one of its dimensions; `unwrapped` of it is x
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree

from treadle_shapes.torch.ours import TreadleMode

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


def mapped_gradients(older: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch._vmap_internals._vmap` (`older`) with torch.func.vmap in its place for gradients that may be None, where a fake mode of
    Treadle has symbolic sizes."""

    @functools.wraps(older)
    def vmap(
        func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, allow_none_pass_through: bool = False
    ) -> Any:
        def mapped(*args: Any) -> Any:
            if not allow_none_pass_through or not _has_symbolic_sizes(args):
                return older(func, in_dims, out_dims, allow_none_pass_through)(*args)
            found: list[Any] = []

            def without_nones(*args: Any) -> tuple[torch.Tensor, ...]:
                found[:] = func(*args)
                return tuple(gradient for gradient in found if gradient is not None)

            gradients = iter(torch.func.vmap(without_nones, in_dims, out_dims)(*args))
            return tuple([None if gradient is None else _batch_outermost(next(gradients)) for gradient in found])

        return mapped

    return vmap


def _batch_outermost(gradients: torch.Tensor) -> torch.Tensor:
    """The gradients in the layout that the older vmap gives them: torch.func's folds the batch into an inner dimension for some operators,
    where the other calls the operator for each item and stacks the results."""
    outer = gradients.stride(0)
    is_folded = outer != 0 and any(stride > outer for stride in gradients.stride()[1:])
    return gradients.contiguous() if is_folded else gradients


def _has_symbolic_sizes(args: Any) -> bool:
    """Whether the tensors belong to a fake mode of Treadle in which some size, though not of these, may be symbolic."""
    active = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    modes = [getattr(leaf, "fake_mode", None) or active for leaf in pytree.tree_leaves(args)]
    return any(isinstance(mode, TreadleMode) and not mode.static_shapes for mode in modes)


__all__ = ["dispatch_keys_restored", "is_transforming", "mapped_gradients", "outside_transforms", "unwrapped"]
