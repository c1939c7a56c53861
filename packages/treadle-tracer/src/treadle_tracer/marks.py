"""What the user declares about single dimensions of a tensor: dynamic, dynamic if possible, or static; a range; a name.

Marks are attributes of the tensor object, so a view or a copy has none. The marks of torch.compile's users (`torch._dynamo.mark_dynamic`
and the like) are attributes, too, and count as marks here. Their names and meaning are those of torch 2.11 - 2.13
(torch/_dynamo/decorators.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch

ATTRIBUTE = "_treadle_marks"

Policy = Literal["dynamic", "maybe", "static"]


class Mark(NamedTuple):
    """One declared dimension. `lower` and `upper` bound its size; dimensions with the same `name` have the same size."""

    policy: Policy
    lower: int | None = None
    upper: int | None = None
    name: str | None = None

    @property
    def range(self) -> str:
        """`[2, 64]`, for messages."""
        return f"[{0 if self.lower is None else self.lower}, {'inf' if self.upper is None else self.upper}]"

    def holds(self, size: int) -> bool:
        """Whether a size is in the declared range."""
        return (self.lower is None or size >= self.lower) and (self.upper is None or size <= self.upper)


def set_mark(tensor: torch.Tensor, dim: int, mark: Mark) -> None:
    """Declare dimension `dim` (0 and up) of `tensor`; a second mark of the same dimension takes the place of the first."""
    setattr(tensor, ATTRIBUTE, {**getattr(tensor, ATTRIBUTE, {}), dim: mark})


def marks_of(tensor: object) -> Mapping[int, Mark]:
    """All marks of a tensor by dimension; none for any other object. A mark set with treadle has precedence over one of torch."""
    attributes = getattr(tensor, "__dict__", None)
    if not attributes or not isinstance(tensor, torch.Tensor):
        return {}
    own = attributes.get(ATTRIBUTE, {})
    if not any(name in attributes for name in _TORCH_POLICIES):
        return own
    return {**_torch_marks(attributes, tensor.dim()), **own}


# Later entries have precedence: in torch, mark_dynamic comes before the other two.
_TORCH_POLICIES: dict[str, Policy] = {
    "_dynamo_propagated_dynamic_indices": "maybe",  # of the values of a jagged tensor
    "_dynamo_static_indices": "static",
    "_dynamo_weak_dynamic_indices": "maybe",
    "_dynamo_dynamic_indices": "dynamic",
}


def _torch_marks(attributes: Mapping[str, object], rank: int) -> dict[int, Mark]:
    found: dict[int, Mark] = {}
    for name, policy in _TORCH_POLICIES.items():
        dims = attributes.get(name)
        for dim in dims if isinstance(dims, (set, frozenset)) else ():
            if -rank <= dim < rank:
                found[dim % rank] = Mark(policy)
    ranges = attributes.get("_dynamo_dynamic_range")
    for entry in ranges if isinstance(ranges, set) else ():
        dim = getattr(entry, "dim", rank)
        if -rank <= dim < rank and dim % rank in found:
            found[dim % rank] = Mark("dynamic", getattr(entry, "min", None), getattr(entry, "max", None))
    return found
