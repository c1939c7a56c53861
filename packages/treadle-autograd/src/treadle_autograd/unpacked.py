"""Saved tensors under hooks (`torch.autograd.graph.saved_tensors_hooks`), which may give back others than they were given.

    with saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t): loss = f(x)       saved: x.t(), of strides (1, 4)
    loss.backward()                                                                    given back: the same values, of strides (3, 1)

Eager's formulas take any strides, and where types are promoted any dtype. A compiled backward graph reads memory as it was laid out.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch

from .backward_pass import Layout
from .stand_ins import without_memory


def layouts_to_restore(tensors: Sequence[torch.Tensor]) -> list[Layout] | None:
    """The layouts of tensors that are about to be saved; None where no hook gets them."""
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:  # type: ignore[attr-defined]
        return None
    return [(t.size(), t.stride(), t.dtype, t.device) for t in tensors]


def unpacked(tensors: Sequence[torch.Tensor], layouts: Sequence[Layout] | None) -> Sequence[torch.Tensor]:
    """What hooks have given back, in the layouts of what has been saved. Raises RuntimeError for tensors of other sizes."""
    if layouts is None:
        return tensors
    return [_restored(tensor, *layout) for tensor, layout in zip(tensors, layouts, strict=True)]


def unchanged(ctx: Any, read: Container[int]) -> tuple[list[torch.Tensor], frozenset[int]]:
    """What a node has saved without hooks, some of which has been changed in place, and the places of that, at which tensors without memory
    stand.

    read: the places of what is read. Raises RuntimeError where one of these has been changed, as `ctx.saved_tensors` does.
    """
    found, changed = [], set()
    for place, saved in enumerate(ctx._raw_saved_tensors):
        try:
            found.append(saved.unpack())
        except RuntimeError:
            if place in read:
                raise
            found.append(without_memory(saved.data))
            changed.add(place)
    return found, frozenset(changed)


def _restored(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    if tensor.size() != size:
        raise RuntimeError(
            f"a hook of saved tensors has given back a tensor of sizes {list(tensor.size())} for one of sizes {list(size)}"
        )
    is_plain = not (tensor._is_zerotensor() or tensor.is_neg() or tensor.is_conj())
    if is_plain and tensor.stride() == stride and tensor.dtype is dtype and tensor.device == device:
        return tensor
    made = torch.empty_strided(size, stride, dtype=dtype, device=device)
    if torch.ops.aten.is_non_overlapping_and_dense.default(made):
        return made.copy_(tensor)
    # Elements share memory, or memory is left out: `copy_` refuses the one, and whoever reads the other reads it by these strides, too.
    memory = torch.empty(made.untyped_storage().nbytes() // made.element_size(), dtype=dtype, device=device)
    places = torch.arange(memory.numel(), device=device).as_strided(size, stride)
    memory[places.flatten()] = tensor.to(device=device, dtype=dtype).flatten()
    return memory.as_strided(size, stride)
