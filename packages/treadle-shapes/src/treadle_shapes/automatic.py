"""Which dimensions become symbols: what was declared, and what earlier calls have shown to change.

The first call of a program compiles with constant sizes; a dimension that comes back with another size is a symbol from
then on. A size of 1 that was larger before is traced with the larger size as hint: the general program serves it too
(unless a decision says otherwise, which the guard function then finds).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle_shapes.env import Policy, ShapeEnv
from treadle_shapes.errors import ConstraintError, UsageError
from treadle_shapes.nodes import IntLike


@dataclass(frozen=True)
class DimPlan:
    """How one dimension is traced: as the int `size`, or as a symbol with this hint and range."""

    size: int
    policy: Policy = "static"
    hint: int = 0
    lower: int | None = None
    upper: int | None = None
    name: str | None = None

    def create(self, env: ShapeEnv, source: str) -> IntLike:
        """The symbol or int for a dimension at `source`; dims of one name share a symbol."""
        if self.policy == "static":
            return self.size
        if self.name is not None:
            return env.create_named(self.name, self.hint, source, self.policy, lower=self.lower, upper=self.upper)
        return env.create_symbol(self.hint, source, self.policy, lower=self.lower, upper=self.upper)


@dataclass(frozen=True)
class Mark:
    """What the user declared about one dimension."""

    policy: Policy
    lower: int | None = None
    upper: int | None = None
    name: str | None = None


@dataclass
class AutomaticDynamic:
    """The memory of one compiled function: sizes seen so far, by source.

    dynamic: None learns from calls, True makes every dimension a symbol at once (sizes 0 and 1 stay constants until they
    are seen larger), False none except those marked dynamic.
    """

    dynamic: bool | None = None
    seen: dict[str, list[set[int]]] = field(default_factory=dict)

    def plan(self, source: str, sizes: Sequence[int], marks: dict[int, Mark] | None = None) -> list[DimPlan]:
        """The plan for a tensor of these sizes found at `source`, which is remembered.

        marks: by dimension (negative counts from the end). Raises ConstraintError when a size is outside its mark's
        range, UsageError for a mark on a dimension that is not there.
        """
        past = self.seen.get(source)
        if past is None or len(past) != len(sizes):
            past = self.seen[source] = [set() for _ in sizes]
        declared = self._normalise(source, sizes, marks or {})
        plans = [self._dim(source, d, size, past[d], declared.get(d)) for d, size in enumerate(sizes)]
        for known, size in zip(past, sizes, strict=True):
            known.add(size)
        return plans

    @staticmethod
    def _normalise(source: str, sizes: Sequence[int], marks: dict[int, Mark]) -> dict[int, Mark]:
        result = {}
        for d, mark in marks.items():
            if not -len(sizes) <= d < len(sizes):
                raise UsageError(f"dimension {d} of {source} is marked, but it has {len(sizes)} dimensions")
            result[d % len(sizes)] = mark
        return result

    def _dim(self, source: str, d: int, size: int, past: set[int], mark: Mark | None) -> DimPlan:
        if mark is not None and mark.policy == "dynamic":
            low = 0 if mark.lower is None else mark.lower
            if size < low or (mark.upper is not None and size > mark.upper):
                top = "inf" if mark.upper is None else mark.upper
                raise ConstraintError(
                    f"{source}.size()[{d}] == {size} is outside the range [{low}, {top}] it was marked dynamic with"
                )
            return DimPlan(size, "dynamic", size, mark.lower, mark.upper, mark.name)
        if mark is not None and mark.policy == "static":
            return DimPlan(size)
        wanted = mark is not None or self.dynamic or (self.dynamic is None and past - {size})
        larger = [n for n in (size, *sorted(past, reverse=True)) if n >= 2]
        if not wanted or size == 0 or not larger:
            return DimPlan(size)
        name = None if mark is None else mark.name
        return DimPlan(
            size, "auto", larger[0], None if mark is None else mark.lower, None if mark is None else mark.upper, name
        )
