"""The renderer protocol: what a target's language has to provide, and what all renderers share."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from treadle_codegen.ir.loops import BoolExpr, Buffer, Check, Expr, Extern, FloatExpr, Instr, Loop, Program
from treadle_codegen.schedule.access import loop_reads, loop_writes
from treadle_codegen.schedule.kernel import Kernel
from treadle_shapes.expr import Symbol, children


@dataclass(frozen=True, slots=True)
class RenderedKernel:
    """A kernel as text. Two kernels with equal `text` are one function called with different buffers.

    buffers, numbers: its arguments in order. A number is an integer for a Symbol and for a size rounded from a float, a
        double for a FloatExpr.
    checks_bounds: whether it reports through the table when an index read from data is out of range.
    label: a name for logs and comments.
    parts: what the renderer needs beside the text to specialise the kernel; nobody else looks at it.
    why_not_constant: why its numbers may not become constants (`Renderer.specialise`), or None.
    results: the numbers that it puts into the table (`NumberGroup`).
    may_doubt: whether it may report `DOUBTFUL`.
    bases: the elements that its buffers are counted from (`rebase`); empty for the first of each.
    literals: constants that it takes as arguments, with their dtypes (`Kernel.literals`).
    """

    function: str
    text: str
    buffers: tuple[str, ...]
    numbers: tuple[Symbol | Expr | FloatExpr, ...]
    checks_bounds: bool
    label: str
    parts: Any = None
    why_not_constant: str | None = None
    results: tuple[FloatExpr, ...] = ()
    may_doubt: bool = False
    bases: tuple[int, ...] = ()
    literals: tuple[tuple[Any, torch.dtype], ...] = ()

    def constants(self, values: Collection[Any]) -> frozenset[Any]:
        """The numbers among `values` that the kernel takes and that may become constants of it."""
        if self.why_not_constant is not None:
            return frozenset()
        return frozenset([n for n in self.numbers if n in values])


@dataclass(frozen=True, slots=True)
class NumberGroup:
    """Steps that read float numbers off tensors and check them, for which a kernel may stand.

    inputs: other numbers that the steps and results mention; results: the numbers that are read, and those that kernels take and that
    are made of them. The kernel puts all results into the table, and reports `DOUBTFUL` where a check may fail or Python may raise.
    """

    steps: tuple[Extern | Check, ...]
    inputs: tuple[FloatExpr, ...]
    results: tuple[FloatExpr, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Kernels that run one after the other without an extern in between: one call from the host. The kernels of `numbers` are last."""

    name: str
    kernels: tuple[RenderedKernel, ...]
    numbers: tuple[NumberGroup, ...] = ()


class Renderer(Protocol):
    """Turns the kernels of one graph into text of the target's language, and that text into entry points.

    parallel: whether several workers share a kernel's outer loop, so that fusion should keep one.
    prelude: what every unit begins with; logs leave it out.
    shares_constants: whether kernels that differ in constants alone should be one that takes them as arguments (`constants`).
    """

    parallel: bool
    prelude: str
    shares_constants: bool

    def render_kernel(self, kernel: Kernel, program: Program, choice: Any = None) -> RenderedKernel:
        """The text of one kernel. `choice`: one of the tilings that a renderer which can be tuned offers (`tune.Choices`)."""
        ...

    def render_numbers(self, group: NumberGroup, program: Program) -> RenderedKernel | None:
        """A kernel that does a group's work; None for a group, or a target, for which the host does it."""
        ...

    def render_unit(self, segments: Sequence[Segment], slots: dict[str, int], buffers: dict[str, Buffer]) -> str:
        """The whole source: every distinct kernel once, and one entry point per segment, named like it.

        `slots` says where buffers and numbers (`slot_key`) stand in the table that entry points read.
        """
        ...

    def specialise(self, kernel: RenderedKernel, values: Mapping[Any, int | float]) -> RenderedKernel:
        """The kernel with the numbers `kernel.constants(values)` as constants. It computes the same bits."""
        ...

    def load(
        self, source: str, names: Sequence[str], *, background: bool = False
    ) -> tuple[dict[str, Callable[..., Any]], bool]:
        """Build and load the source: (entry point by name, whether it came from the cache). `background`: at low priority.

        Entry points take the `argument` of the target's table.
        """
        ...


@functools.lru_cache(maxsize=1 << 14)
def rounded_floats(e: Expr | BoolExpr) -> tuple[tuple[Any, ...], frozenset[Any]]:
    """The parts of an integer expression that are made from floats (`int(n * 1.3)`), and the symbols of the rest.

    Kernels take such parts as numbers, because the host computes floats exactly as eager computed the size.
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


def numbers_of(kernel: Kernel) -> tuple[Any, ...]:
    """What a kernel takes beside buffers, in the order in which it mentions them.

    These are the symbols of sizes, floats, and sizes rounded from floats; the host computes the latter two.
    """
    found: dict[Any, None] = {}
    axes = (*kernel.outer, *(a for s in kernel.sections for a in s.axes))
    own = {axis.symbol for axis in axes}

    def visit(e: Any) -> None:
        if isinstance(e, (tuple, list)):
            for item in e:
                visit(item)
        elif isinstance(e, (Expr, BoolExpr)):
            rounded, symbols = rounded_floats(e)
            found.update(dict.fromkeys(rounded))
            found.update(dict.fromkeys(sorted(symbols - own, key=lambda s: s.order)))

    for axis in axes:
        visit(axis.extent)
    for section in kernel.sections:
        for loop in section.members:
            for access in (*loop_reads(loop), *loop_writes(loop)):
                visit(access.index)
            for instr in loop.body:
                if instr.op in ("index", "indirect_load", "indirect_store", "check_position"):
                    visit(instr.attr)
                elif instr.op == "masked_load":
                    visit(instr.attr[1])
                elif instr.op == "scalar":
                    found[instr.attr] = None
    return tuple(found)


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
