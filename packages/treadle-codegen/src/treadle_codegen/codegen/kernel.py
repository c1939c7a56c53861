"""The renderer protocol: what a target language has to provide, and what all of them share."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treadle_codegen.ir.loops import BoolExpr, Buffer, Expr, FloatExpr, Instr, Loop, Program
from treadle_codegen.schedule.kernel import Kernel
from treadle_shapes.expr import Symbol, children


@dataclass(frozen=True, slots=True)
class RenderedKernel:
    """A kernel as text. Two kernels with equal `text` are one function called with different buffers.

    `buffers` and `numbers` are the arguments in order: pointers, then an int64 for each Symbol, and a double for each
    FloatExpr and an int64 for each size rounded from one, which the host computes; `checks_bounds` adds a pointer to an
    int64 that the kernel sets to 1 when an index read from data is out of range. `text` is made of `parameters` and `body`.
    `why_not_constant`: why its numbers may not become constants (`specialize`), or None.
    """

    function: str
    text: str
    buffers: tuple[str, ...]
    numbers: tuple[Symbol | Expr | FloatExpr, ...]
    checks_bounds: bool
    label: str
    parameters: tuple[str, ...]
    body: str
    why_not_constant: str | None = None

    def constants(self, values: Collection[Any]) -> frozenset[Any]:
        """Those of the numbers `values` that the kernel takes and that may become constants of it."""
        if self.why_not_constant is not None:
            return frozenset()
        return frozenset([n for n in self.numbers if n in values])


@dataclass(frozen=True, slots=True)
class Segment:
    """Kernels that run one after the other without an extern in between: one call from the host."""

    name: str
    kernels: tuple[RenderedKernel, ...]


class Renderer(Protocol):
    """A target language."""

    def render_kernel(self, kernel: Kernel, program: Program) -> RenderedKernel:
        """The text of one kernel."""
        ...

    def render_unit(self, segments: Sequence[Segment], slots: dict[str, int], buffers: dict[str, Buffer]) -> str:
        """The whole source: every distinct kernel once, and the entry points; `slots` maps buffers and numbers (`slot_key`)
        to the host's table."""
        ...

    def specialize(self, kernel: RenderedKernel, values: Mapping[Any, int | float]) -> RenderedKernel:
        """The kernel with some of its numbers (those that `kernel.constants(values)` allows) as constants; the same results."""
        ...

    def load(
        self, source: str, names: Sequence[str], *, background: bool = False
    ) -> tuple[dict[str, Callable[..., Any]], bool]:
        """Build the source, at low priority in the `background`: (entry point by name, whether it came from the cache)."""
        ...


def slot_key(number: Any) -> str:
    """The name under which a number that kernels take stands in the host's table."""
    if isinstance(number, Symbol):
        return number.name
    return f"{'double' if isinstance(number, FloatExpr) else 'int'} {number}"


@functools.lru_cache(maxsize=1 << 14)
def rounded_floats(e: Expr | BoolExpr) -> tuple[tuple[Any, ...], frozenset[Any]]:
    """The parts of an integer expression that are made from floats (`int(n * 1.3)`), and the symbols of the rest.

    Kernels take such parts as numbers: the host's floats are the ones that eager computed the size with.
    """
    if any(isinstance(part, FloatExpr) for part in children(e)):
        return (e,), frozenset()
    rounded: dict[Any, None] = {}
    symbols: set[Any] = {e} if isinstance(e, Symbol) else set()
    for part in children(e):
        if isinstance(part, (Expr, BoolExpr)):
            inner, own = rounded_floats(part)
            rounded.update(dict.fromkeys(inner))
            symbols |= own
    return tuple(rounded), frozenset(symbols)


def function_name(text: str) -> str:
    """A stable name for kernel text."""
    return "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]


def split_at_reduce(loop: Loop) -> int:
    """Index of the first instruction after the last `reduce` (0 for a loop without one)."""
    last = 0
    for k, instr in enumerate(loop.body):
        if instr.op == "reduce":
            last = k + 1
    return last


def const_key(instr: Instr) -> Any:
    """An attribute usable in value numbering: 0.0 and -0.0, 1 and True differ, nan equals itself."""
    if instr.op == "const":
        return (type(instr.attr).__name__, repr(instr.attr))
    if instr.op == "masked_load":
        return (instr.attr[0], instr.attr[1], repr(instr.attr[2]))
    return instr.attr
