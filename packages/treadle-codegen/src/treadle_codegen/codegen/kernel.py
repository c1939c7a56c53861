"""The renderer protocol: what a target language has to provide, and what all of them share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treadle_codegen.ir.loops import Buffer, FloatExpr, Instr, Loop, Program
from treadle_codegen.schedule.kernel import Kernel
from treadle_shapes.expr import Symbol


@dataclass(frozen=True, slots=True)
class RenderedKernel:
    """A kernel as text. Two kernels with equal `text` are one function called with different buffers.

    `buffers` and `numbers` are the arguments in order: pointers, then an int64 for each Symbol and a double for each
    FloatExpr, which the host computes; `checks_bounds` adds a pointer to an int64 that the kernel sets
    to 1 when an index read from data is out of range.
    """

    function: str
    text: str
    buffers: tuple[str, ...]
    numbers: tuple[Symbol | FloatExpr, ...]
    checks_bounds: bool
    label: str


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

    def load(self, source: str, names: Sequence[str]) -> tuple[dict[str, Callable[..., Any]], bool]:
        """Build the source: (entry point by name, whether it came from the cache)."""
        ...


def slot_key(number: Any) -> str:
    """The name under which a number that kernels take stands in the host's table."""
    return f"double {number}" if isinstance(number, FloatExpr) else number.name


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
