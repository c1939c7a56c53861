"""Comparisons of a random number with a limit of its range, which come out one way whatever is drawn.

if torch.rand([]) < self.layerdrop:  # where layers may be dropped, and the probability is 0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from treadle_tracer.values.call_effects import name_of, storages

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_BELOW = frozenset(("lt", "le", "less", "less_equal", "__lt__", "__le__"))
_ABOVE = frozenset(("gt", "ge", "greater", "greater_equal", "__gt__", "__ge__"))
_DECIDED_AT_ZERO = frozenset(("lt", "less", "__lt__", "ge", "greater_equal", "__ge__"))
# Of `operator`, which takes the number first for `0.5 > r`.
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def truth_for_all_draws(tx: TraceContext, comparison: fx.Node | None) -> bool | None:
    """The truth of a comparison of one uniform random number with a constant; None where it depends on the draw, or is something else."""
    if comparison is None or comparison.op not in ("call_function", "call_method") or len(comparison.args) != 2:
        return None
    name, (draw, limit) = name_of(comparison.target), comparison.args
    if isinstance(limit, fx.Node):
        name, draw, limit = _MIRRORED.get(name, ""), limit, draw
    if name not in _BELOW | _ABOVE or comparison.kwargs or not isinstance(limit, (int, float)) or type(limit) is bool:
        return None
    if not isinstance(draw, fx.Node) or not _is_uniform(draw):
        return None
    if any(True for _ in tx.graph.writes().to(storages(draw.meta.get("example_value")))):
        return None
    if limit >= 1:
        return name in _BELOW
    if limit < 0 or (limit == 0 and name in _DECIDED_AT_ZERO):
        return name in _ABOVE
    return None


def _is_uniform(draw: fx.Node) -> bool:
    """Whether a node draws one number from 0 on and below 1. Narrow dtypes may round to 1."""
    fake = draw.meta.get("example_value")
    return (
        draw.target is torch.rand
        and "out" not in draw.kwargs
        and isinstance(fake, torch.Tensor)
        and fake.dtype in (torch.float32, torch.float64)
        and fake.numel() == 1
    )
