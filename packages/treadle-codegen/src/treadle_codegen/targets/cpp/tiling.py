"""How a kernel's loops are written: what may be chosen by measuring, and what is taken without."""

from __future__ import annotations

from dataclasses import dataclass, replace

from treadle_codegen.schedule.kernel import Kernel


@dataclass(frozen=True, slots=True)
class CppTiling:
    """Choices of one kernel.

    vector_bits: the vectors that the compiler should prefer; 0: those of the processor (`build.compile_flags`).
    columns, chunks: whether reductions down columns (`columns.py`) and odd rows (`chunks.py`) have loops of their own.
    tile: the side of the squares in which a transposed read is walked (`tiles.py`); 0: none.
    streams: in how many parts a light row is reduced side by side.
    """

    vector_bits: int = 0
    columns: bool = True
    chunks: bool = True
    tile: int = 64
    streams: int = 1

    def __str__(self) -> str:
        changed = [
            f"{name} {getattr(self, name)}" for name in self.__slots__ if getattr(self, name) != getattr(DEFAULT, name)
        ]
        return ", ".join(changed) or "default"


DEFAULT = CppTiling()


def candidates(kernel: Kernel, uses: frozenset[str], wide_vectors: bool) -> list[CppTiling]:
    """The tilings worth measuring, the default first. `uses`: which of the choices the default text of the kernel depends on."""
    found = [DEFAULT]
    if wide_vectors:
        found.append(replace(DEFAULT, vector_bits=256))
    if "columns" in uses:
        found.append(replace(DEFAULT, columns=False))
    if "chunks" in uses:
        found.append(replace(DEFAULT, chunks=False))
    if "tile" in uses:
        found += [replace(DEFAULT, tile=side) for side in (0, 16, 32, 128)]
    if "streams" in uses:
        found += [replace(DEFAULT, streams=n) for n in (2, 4)]
    return found
