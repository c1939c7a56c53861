"""`mark_dynamic`, `maybe_mark_dynamic`, `mark_static`: declare single dimensions of a tensor dynamic or static."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from treadle_shapes import ConstraintError
from treadle_tracer import Mark, set_mark

from .errors import WrongUse


def mark_dynamic(
    tensor: torch.Tensor,
    dims: int | Iterable[int],
    *,
    min: int | None = None,
    max: int | None = None,
    name: str | None = None,
) -> None:
    """Make the sizes `dims` of `tensor` symbolic from the first compile on.

    tensor: the object that is passed to the compiled function, directly or inside lists, dicts or attributes. Views and copies of it
        have no marks.
    dims: one dimension or several. Negative ones count from the end.
    min, max: the smallest and largest size, inclusive (None: no bound). Compiled code relies on them.
    name: dimensions with the same name have the same size in every call.

    Raises ConstraintError (a ValueError) if a size is outside its range or differs from another of the same name, either here or in
    the call. A call raises it too if the program makes the dimension a constant; the message names the line and the constant. A size
    of 0 has compiled code of its own. Raises WrongUse (a TypeError) or ValueError for invalid arguments.
    """
    _check_range(min, max)
    if name is not None and (not isinstance(name, str) or not name):
        raise WrongUse(f"mark_dynamic: name must be a non-empty str or None, got {name!r}")
    _mark(tensor, "mark_dynamic", dims, Mark("dynamic", min, max, name))


def maybe_mark_dynamic(tensor: torch.Tensor, dims: int | Iterable[int]) -> None:
    """Like `mark_dynamic`, but a program that makes the size a constant is no error."""
    _mark(tensor, "maybe_mark_dynamic", dims, Mark("maybe"))


def mark_static(tensor: torch.Tensor, dims: int | Iterable[int] | None = None) -> None:
    """Keep the sizes `dims` of `tensor` (default: all) constant. Every other size is compiled on its own."""
    _check_tensor(tensor, "mark_static")
    _mark(tensor, "mark_static", range(tensor.dim()) if dims is None else dims, Mark("static"))


def _check_tensor(tensor: Any, function: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise WrongUse(f"{function}: tensor must be a torch.Tensor, got {type(tensor).__name__}: {tensor!r}")


def _check_range(lower: Any, upper: Any) -> None:
    for argument, bound in (("min", lower), ("max", upper)):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
            raise WrongUse(f"mark_dynamic: {argument} must be an int or None, got {bound!r}")
        if bound is not None and bound < 0:
            raise ValueError(f"mark_dynamic: {argument} must be at least 0, got {bound}")
    if lower is not None and upper is not None and lower > upper:
        raise ValueError(f"mark_dynamic: min must not be greater than max, got min={lower}, max={upper}")


def _mark(tensor: Any, function: str, dims: Any, mark: Mark) -> None:
    """Check all arguments, then mark. An error leaves every dimension unmarked."""
    _check_tensor(tensor, function)
    if mark.policy == "dynamic" and isinstance(tensor, torch.nn.Parameter):
        raise WrongUse(
            f"{function}: tensor is a Parameter, whose sizes are constants of the compiled code; mark an input"
        )
    chosen = [_normalised(dim, tensor, function) for dim in _as_list(dims, function)]
    first: int | None = None
    for dim in chosen:
        size = tensor.shape[dim]
        if not mark.holds(size):
            raise ConstraintError(
                f"{function}: dimension {dim} of the tensor (shape {tuple(tensor.shape)}) is {size}, "
                f"outside the range {mark.range} given with min and max"
            )
        first = dim if first is None else first
        if mark.name is not None and size != tensor.shape[first]:
            raise ConstraintError(
                f"{function}: dimensions {first} and {dim} of the tensor (shape {tuple(tensor.shape)}) have different "
                f"sizes, so they cannot both be named {mark.name!r}"
            )
    for dim in chosen:
        set_mark(tensor, dim, mark)


def _as_list(dims: Any, function: str) -> list[Any]:
    if isinstance(dims, int):
        return [dims]
    if isinstance(dims, (str, bytes)) or not isinstance(dims, Iterable):
        raise WrongUse(f"{function}: dims must be an int or ints, got {dims!r}")
    return list(dims)


def _normalised(dim: Any, tensor: torch.Tensor, function: str) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise WrongUse(f"{function}: dims must be an int or ints, got {dim!r}")
    rank = tensor.dim()
    if not -rank <= dim < rank:
        allowed = f"{-rank} to {rank - 1}" if rank else "none, the tensor has no dimensions"
        raise ValueError(
            f"{function}: dims {dim} is out of range for a tensor of {rank} dimensions; allowed: {allowed}"
        )
    return dim % rank
