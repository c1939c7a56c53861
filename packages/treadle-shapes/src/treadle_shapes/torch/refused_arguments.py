"""Checks of arguments that eager makes and PyTorch's fake kernels leave out (torch 2.11 to 2.13). Needs torch.

    torch.slice_scatter(fake[5, 3], fake[3, 3], 0, 1, 3)      # raises, as in eager: the slice has 2 rows

`checks()` maps overloads to the checks that a `TreadleFakeMode` makes before it runs a kernel. `Operator.fake_correction` names the check
of an operator. Sizes that are not known to differ pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.torch.operators.declare import corrected_by

Check = Callable[..., None]


def _differ(a: Any, b: Any) -> bool:
    """Whether two sizes differ, as far as that is known without assumptions about the data."""
    found = a != b
    return bool(found.node.guard_or_false("", 0)) if isinstance(found, torch.SymBool) else found


def _of_a_part(part: Callable[..., torch.Tensor]) -> Check:
    """Raises where the second argument has not the size of the part that it replaces. part: (tensor, how it is chosen) -> the part."""

    def check(mode: Any, x: torch.Tensor, src: torch.Tensor, *chosen: Any, **named: Any) -> None:
        with mode:
            replaced = part(x, *chosen, **named)
        if src.dim() != replaced.dim() or any(map(_differ, src.shape, replaced.shape)):
            raise RuntimeError(
                "expected src to have a size equal to the slice of self. "
                f"src size = {list(src.shape)}, slice size = {list(replaced.shape)}"
            )

    return check


def _slice(x: torch.Tensor, dim: int = 0, *ends: Any, **named: Any) -> torch.Tensor:
    return torch.ops.aten.slice.Tensor(x, dim, *ends, **named)  # type: ignore[no-any-return]


def _smooth_l1_loss(mode: Any, x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> None:
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")


def _celu(mode: Any, x: torch.Tensor, alpha: float = 1.0) -> None:
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")


def _logsumexp(mode: Any, x: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> None:
    """The kernel for sizes keeps the dimensions where there are none to reduce over, that for values drops them."""
    if not dim and x.dim() and not keepdim and not any(type(size) is int and size == 0 for size in x.shape):
        raise RuntimeError(f"output with shape [] doesn't match the broadcast shape {[1] * x.dim()}")


def _at_positions(mode: Any, x: torch.Tensor, indices: Sequence[Any], *rest: Any, **named: Any) -> None:
    shapes = [index.shape for index in indices if isinstance(index, torch.Tensor) and index.dtype is torch.int64]
    for places in zip(*[reversed(shape) for shape in shapes], strict=False):
        sizes = [size for size in places if _differ(size, 1)]
        if any(_differ(size, sizes[0]) for size in sizes):
            listed = ", ".join(str(list(shape)) for shape in shapes)
            raise IndexError(f"shape mismatch: indexing tensors could not be broadcast together with shapes {listed}")


_CHECKS: Mapping[str, Check] = {
    "slices of another size": _of_a_part(_slice),
    "selections of another size": _of_a_part(torch.select),
    "diagonals of another size": _of_a_part(torch.diagonal),
    "negative beta": _smooth_l1_loss,
    "no alpha": _celu,
    "no dimensions": _logsumexp,
    "positions of different shapes": _at_positions,
}
"""By `fake_correction`."""


@functools.cache
def checks() -> Mapping[Any, Check]:
    """Return overload -> check(mode, *args, **kwargs), which raises what eager raises. In-place operators make the same checks."""
    found: dict[Any, Check] = {}
    for name, check in _CHECKS.items():
        for op in corrected_by(name):
            in_place = getattr(torch.ops.aten, f"{op._schema.name.removeprefix('aten::')}_", None)
            found |= dict.fromkeys([op, *([in_place.default] if in_place is not None else [])], check)
    return found


__all__ = ["checks"]
