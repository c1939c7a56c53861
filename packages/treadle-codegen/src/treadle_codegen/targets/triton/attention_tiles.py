"""How an attention is cut into blocks: the choices that are measured, and the one that is made without measuring."""

from __future__ import annotations

from dataclasses import dataclass

from treadle_codegen.ir.attention import Attention
from treadle_codegen.ir.loops import Axis
from treadle_codegen.targets.triton.matmul_tiles import MULTIPROCESSORS
from treadle_codegen.targets.triton.tiles import next_power_of_2, points

_SMALLEST = 16  # tensor cores take no smaller blocks
_FEW_ROWS = 64


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """One choice: `rows` queries per program, in steps of `keys` keys. terms, columns: all of a score and of a value, as powers of 2."""

    rows: int
    keys: int
    terms: int
    columns: int
    num_warps: int
    num_stages: int

    def __str__(self) -> str:
        return f"{self.rows} queries, {self.keys} keys, warps {self.num_warps}, stages {self.num_stages}"


# None of them spills registers where capability is 8.0, 9.0 or 10.0 (`test_attention_compiles.py`).
# By the wider of terms and columns: (queries, keys, warps, stages), first the one that is taken without measuring.
_BY_WIDTH = {
    64: ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 128, 4, 2), (64, 32, 4, 3), (32, 64, 4, 3)),
    128: ((128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 3), (32, 64, 4, 2)),
    256: ((64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2)),
}


def attention_candidates(attention: Attention) -> list[AttentionTiling]:
    """The tilings worth measuring; first the one that is taken without measuring."""
    terms, columns = _width((attention.terms,)), _width(attention.columns)
    rows, keys = points(attention.rows), points(attention.keys)
    found: list[AttentionTiling] = []
    for row in _BY_WIDTH[next(w for w in _BY_WIDTH if max(terms, columns) <= w)]:
        at_once = [
            min(most, max(_SMALLEST, next_power_of_2(n))) if isinstance(n, int) else most
            for n, most in zip((rows, keys), row, strict=False)
        ]
        tiling = AttentionTiling(at_once[0], at_once[1], terms, columns, *row[2:])
        if tiling not in found:
            found.append(tiling)
    first = next((k for k, tiling in enumerate(found) if _occupies(attention, tiling)), None)
    if first is None:  # as many programs as there can be, of blocks that are worth one
        first = next(k for k, tiling in enumerate(found) if tiling.rows <= _FEW_ROWS)
    return [found.pop(first), *found]


def _occupies(attention: Attention, tiling: AttentionTiling) -> bool:
    """Whether every multiprocessor has a block to compute, as far as that is known."""
    rows, batch = points(attention.rows), points(attention.batch)
    return not (isinstance(rows, int) and isinstance(batch, int)) or batch * -(-rows // tiling.rows) >= MULTIPROCESSORS


def _width(axes: tuple[Axis, ...]) -> int:
    width = points(axes)
    assert isinstance(width, int)
    return max(_SMALLEST, next_power_of_2(width))
