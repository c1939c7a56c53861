"""Records of a ShapeEnv: the source and policy of each symbol, and the runtime assertions."""

from __future__ import annotations

from typing import Literal, NamedTuple

from treadle_shapes.errors import UsageError
from treadle_shapes.guards import Stack
from treadle_shapes.nodes import BoolExpr, Symbol

Policy = Literal["static", "auto", "dynamic"]
POLICIES: tuple[str, ...] = ("static", "auto", "dynamic")

INT64_MAX = 2**63 - 1


class SymbolInfo(NamedTuple):
    """The source of a symbol and the policy that the user chose for it."""

    symbol: Symbol
    hint: int | None
    source: str
    policy: str
    stack: Stack
    size: bool = True

    @property
    def unbacked(self) -> bool:
        return self.hint is None


class RuntimeAssert(NamedTuple):
    """A condition on unbacked values. The graph must check it."""

    condition: BoolExpr
    message: str
    stack: Stack


def check_symbol(source: str, lower: int | None, upper: int | None) -> None:
    """Raise UsageError unless these can be the source and the range of a symbol."""
    if not isinstance(source, str):
        raise UsageError(f'the source of a symbol is text such as "x.shape[0]", got {source!r}')
    for end in (lower, upper):
        if end is not None and not isinstance(end, int):
            raise UsageError(f"the range of {source} must have ints or None as ends, got {end!r}")
    if lower is not None and upper is not None and lower > upper:
        raise UsageError(f"the range [{lower}, {upper}] of {source} is empty")
