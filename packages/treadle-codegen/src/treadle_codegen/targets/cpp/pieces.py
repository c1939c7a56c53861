"""Parts of an innermost loop in which its positions are linear: one that is clamped or chosen keeps the whole loop from being vectorised.
So do conditions under which elements are read, where the processor's vectors have no masks for such elements.

for j < 58: b1[j] = b0[min(55, max(0, j - 1))]        becomes

j = 0: b1[j] = b0[0];    for 1 <= j < 56: b1[j] = b0[j - 1];    for 56 <= j < 58: b1[j] = b0[55]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from treadle_codegen.ir.loops import Axis, IntLike, Load
from treadle_codegen.schedule.access import split_index
from treadle_codegen.schedule.kernel import Section
from treadle_codegen.targets.cpp.vector_math import instruction_sets
from treadle_shapes.expr import BoolExpr, Expr, Fn, Range, Symbol, children, free_symbols, simplify

_MOST = 5  # pieces; reflection on both sides needs three
# Vectors along a loop that make up for the points at its ends, which are computed one by one. Pooling 3 x 3 of float32 in pieces (EPYC,
# one thread): with AVX2 rows of 56 take 0.4 to 0.7 times as long, those of 28 up to 1.7 times; with AVX-512 rows of 224 0.6 to 0.8, of 56
# up to 1.8.
_FEWEST_VECTORS = 7
_FEWEST_NARROW = 48  # points of a loop with one such read of a bfloat16 number that are worth cutting it with AVX-512


def linear_pieces(section: Section, axis: Axis, ranges: Mapping[Symbol, Range]) -> list[tuple[int, int]]:
    """First position and end of each piece, in order; none where the loop is better left whole."""
    if not isinstance(axis.extent, int) or any(member.reduce_axes for member in section.members):
        return []
    positions = [e for e in _positions(section, axis.extent) if any(True for _ in _choices(e, axis.symbol))]
    if not positions:
        return []
    found: list[tuple[int, int]] = []
    waiting = [(0, axis.extent)]
    while waiting:
        first, end = waiting.pop()
        inside = [simplify(e, {**ranges, axis.symbol: Range(first, end - 1)}) for e in positions]
        at = next((at for e in inside for at in _changes(e, axis.symbol) if first < at < end), None)
        if at is None:
            found.append((first, end))
        else:
            waiting += [(at, end), (first, at)]
        if len(found) + len(waiting) > _MOST:
            return []
    return found if len(found) > 1 else []


def _positions(section: Section, extent: int) -> list[Expr | BoolExpr]:
    """Where the members of a section read, and under which conditions."""
    instructions = [i for member in section.members for i in member.body]
    found: list[Any] = [i.attr.index for i in instructions if i.op == "load" and isinstance(i.attr, Load)]
    masked = dict.fromkeys((i.attr[:2], i.dtype.itemsize) for i in instructions if i.op == "masked_load")
    if why_not_cut_at_conditions([size for _, size in masked], extent) is None:
        found += [e for (load, condition), _ in masked for e in (load.index, condition)]
    return [e for e in dict.fromkeys(found) if isinstance(e, (Expr, BoolExpr))]


def why_not_cut_at_conditions(sizes: Sequence[int], extent: int) -> str | None:
    """Why a loop of `extent` points is not cut where the conditions of its reads change, or None. `sizes`: of what each reads, in bytes."""
    if not sizes:
        return "nothing is read under a condition"
    has_masks = "avx512f" in instruction_sets()
    if min(sizes) < 4:  # AVX2 has masks for elements of four and eight bytes only
        if has_masks and len(sizes) == 1 and extent < _FEWEST_NARROW:
            return "one read of narrow elements, which the processor masks"
        return None
    vector = 64 if has_masks else 32
    if extent * max(sizes) < _FEWEST_VECTORS * vector:
        return "too short"
    return None


def _choices(e: Any, symbol: Symbol) -> Iterator[Fn | BoolExpr]:
    """The minima, maxima and comparisons in an expression that depend on a symbol, the innermost first."""
    if symbol not in free_symbols(e):
        return
    for part in children(e):
        yield from _choices(part, symbol)
    if isinstance(e, Fn) and e.op in ("min", "max"):
        yield e
    elif isinstance(e, BoolExpr) and e.op in ("le0", "eq0", "ne0"):
        yield e


def _changes(e: IntLike, symbol: Symbol) -> Iterable[int]:
    """The positions along a symbol from which on a choice in an expression comes out differently."""
    for choice in _choices(e, symbol):
        if isinstance(choice, BoolExpr):
            yield from _sign_changes(choice.args[0], symbol, choice.op == "le0")
            continue
        for k, a in enumerate(choice.args):
            for b in choice.args[:k]:
                yield from _sign_changes(a - b, symbol, True)


def _sign_changes(difference: IntLike, symbol: Symbol, ordered: bool) -> Iterable[int]:
    """Where a linear expression begins or ceases to be at most 0, or (not `ordered`) to be 0."""
    split = split_index(difference, [symbol])
    if split is None:
        return
    step, rest = split[0][0], split[1]
    if not isinstance(step, int) or not isinstance(rest, int) or step == 0:
        return
    if ordered:
        yield -rest // step + 1 if step > 0 else -(-rest // -step)
    elif rest % step == 0:
        yield from (-rest // step, -rest // step + 1)
