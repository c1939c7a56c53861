"""The loop IR: what lowering produces, the scheduler fuses and the renderers print.

A `Program` is a list of steps over named buffers. A step is a `Loop` (one perfect loop nest whose body is a short SSA
program over scalars), an `Extern` (a call of an ATen operator on whole tensors) or a `Check` (a condition that must
hold). Nothing here knows a target language.

Sizes and numbers may be expressions over symbols. `Program.size_symbols` come with the inputs; others are defined by
the externs that `bind` them (the number of elements that `nonzero` finds, the value of `item`), and exist from there on.

Contract of a `Loop` (checked by `ir.verify`):

- `body` is in SSA form: instruction `k` defines value `k`; arguments refer to smaller indices only.
- Index expressions use the symbols of `axes` and `reduce_axes` and size symbols only, and stay inside the buffer.
- At most the instructions up to and including the last `reduce` may depend on `reduce_axes`; instructions after it run
  once per point of `axes`. A loop without `reduce_axes` has no `reduce`.
- Two points of the iteration space never store to the same element, except with `mode="add"` and in an `indirect_store` with a mode.
- A loop with a `scan` has no `reduce_axes`; its last axis is the one along which values are summed up, and is visited in order.
- A buffer that a loop stores to is loaded there only with `mode="overwrite"`, and no point loads what another one stores.
- dtypes of arguments and results agree with `ir.ops.OPS`.

Example, `y = relu(x).sum(1)` for a contiguous `x` of shape (4, 8)::

    loop sum_0 [i0:4] reduce [r0:8]
      %0 = load x[8*i0 + r0] : float32
      %1 = relu %0 : float32
      %2 = reduce sum %1 : float32
      store y[i0] %2
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from treadle_codegen.ir.value_class import value_class
from treadle_shapes.expr import BoolExpr, Expr, Node, Symbol, children
from treadle_shapes.floats import FloatExpr

IntLike = int | Expr
# A number of the graph: known while compiling, or an expression over the sizes and numbers of a call.
NumberLike = int | float | bool | Expr | FloatExpr | BoolExpr


class BufferKind(Enum):
    """Who owns a buffer's memory."""

    INPUT = "input"  # argument of the compiled graph, different memory on every call
    STATIC = "static"  # parameter or buffer of a module: the same tensor object on every call
    CONSTANT = "constant"  # tensor made while compiling, kept by the compiled graph
    TEMP = "temp"  # written and read by steps; planned by schedule.memory
    OUTPUT = "output"  # fresh memory on every call, handed to the caller


@value_class
class Buffer:
    """A strided region of memory: `shape`, `strides` and `offset` in elements, `dtype` as torch names it.

    Loops index a complex buffer by its parts: the element at k has its real part at 2*k, its imaginary part at 2*k + 1.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    kind: BufferKind
    offset: IntLike = 0
    opaque: bool = False  # memory in a layout only externs understand (packed weights): passed on whole


@value_class
class View:
    """A strided view of a buffer as an argument of an `Extern` or an output of the program; offset from the buffer's own first element."""

    buffer: str
    shape: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    offset: IntLike = 0


@value_class
class Axis:
    """One loop `for symbol in range(extent)`."""

    symbol: Symbol
    extent: IntLike


@value_class
class Load:
    """Where a `load` reads: `buffer[index]` (index in elements from the buffer's first); `other` is the value when `mask` is false."""

    buffer: str
    index: IntLike


@value_class
class Store:
    """Where a `store` writes; `mode` is None for the first value of an element, "overwrite" where other steps may have written or read
    the element before, or "add"."""

    buffer: str
    index: IntLike
    mode: str | None = None


@value_class
class Instr:
    """One SSA instruction. `op` is a key of `ir.ops.OPS`; `args` are indices of earlier instructions.

    `attr` by op: `load` Load, `store` Store, `const` the Python number (or a `targets.constants.ConstantArgument`),
    `index` an Expr (the integer value of an index expression),
    `scalar` a FloatExpr over symbols (a float that the host computes once per call of the kernel),
    `reduce` the kind ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "dot" and "dot_tf32", which sum the products
    of two arguments: `ir.product`, or "softmax_dot" and "safe_softmax_dot": `ir.attention`), `indirect_load`/`indirect_store` a
    `(buffer, strides, sizes)` triple whose args are the per-dimension indices (bounds are checked at run time where eager checks them);
    a store's may have a fourth item, "overwrite" or a key of `ir.ops.SCATTERS`: points come in row-major order, and may
    meet,
    `check_position` the size of a dimension: the call fails where the argument is no position in it,
    `scan` the kind ("sum", "prod") of the running total along the last axis, the point's own value included,
    `masked_load` (Load, condition BoolExpr, other number) for padding and cat: reads memory only where the condition holds,
    `cast` the target dtype (also in `dtype`), else None.
    """

    op: str
    args: tuple[int, ...]
    dtype: torch.dtype
    attr: Any = None


@value_class
class Loop:
    """A loop nest; see the module docstring for its contract.

    is_checked: whether all its positions that are data are known to be in range when it runs (`schedule.early_checks`).
    """

    name: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    body: tuple[Instr, ...]
    origins: tuple[str, ...] = ()  # names of the ATen nodes it stands for, for comments, logs and errors
    is_checked: bool = False
    accesses: Any = field(default=None, init=False, repr=False, compare=False)  # kept by `schedule.access`


@dataclass(frozen=True, slots=True)
class Bind:
    """A symbol whose value is known once an extern has run: size `dim` of its result number `result`, divided by `factor`,
    or the result itself (a number) where `dim` is None. `source` is the user's text for it, for messages."""

    symbol: Any  # a Symbol, or a FloatExpr leaf with a name
    result: int
    dim: int | None
    factor: int = 1
    source: str = ""


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of `op` (an OpOverload). `args`/`kwargs` hold `View`s, numbers, dtypes and nested lists of them.

    `outputs` are the buffers that receive the results. With `out_variant` the op is an `.out` overload and the host passes
    the (pre-allocated, planned) output buffers as its out arguments; otherwise the results are fresh tensors made by the op.
    `binds` are the symbols that its results define.
    """

    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str, ...]
    out_variant: bool = False
    origins: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on run-time values: the call raises `error` ("RuntimeError" or "IndexError") where it does not hold.

    What follows and mentions one of its symbols may rely on it.
    """

    name: str
    condition: BoolExpr | bool
    message: str
    error: str = "RuntimeError"


@dataclass(frozen=True, slots=True)
class Define:
    """A symbol for a number computed from others, such as the length of a slice, that later expressions need not repeat."""

    name: str
    symbol: Symbol
    value: NumberLike


Step = Loop | Extern | Check | Define


@dataclass(slots=True)
class Program:
    """A whole graph. `outputs` are Views of buffers, numbers, or None, in the order of the graph's output node.

    updates: output buffer -> input buffer that the caller copies it into; in_place: those of them that are one memory, chosen by
    `schedule.in_place`.
    """

    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]  # buffer or size-symbol names in the order of the placeholders
    outputs: tuple[View | NumberLike | None, ...]
    steps: list[Step]
    size_symbols: tuple[Any, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)
    in_place: dict[str, str] = field(default_factory=dict)
    device: torch.device | None = None  # where its loops run; None: on the only device there is
    foreign: frozenset[str] = frozenset()  # buffers elsewhere, which only externs may touch

    @property
    def bound_symbols(self) -> list[Any]:
        """The symbols that steps define, in order."""
        return [symbol for step in self.steps for symbol in bound_symbols(step)]


def bound_symbols(step: Step) -> tuple[Any, ...]:
    """The symbols a step defines."""
    if isinstance(step, Define):
        return (step.symbol,)
    return tuple([bind.symbol for bind in step.binds]) if isinstance(step, Extern) and step.binds else ()


def scans(loop: Loop) -> bool:
    """Whether the loop computes running totals along its last axis."""
    return any(instr.op == "scan" for instr in loop.body)


def load_of(instr: Instr) -> tuple[str, IntLike | None] | None:
    """The buffer that an instruction loads from and the index there, None for one that is data; None if it loads nothing."""
    if instr.op == "load":
        return instr.attr.buffer, instr.attr.index
    if instr.op == "masked_load":
        return instr.attr[0].buffer, instr.attr[0].index
    if instr.op == "indirect_load":
        return instr.attr[0], None
    return None


_NONE: frozenset[Any] = frozenset()


def symbols_of(value: Any) -> frozenset[Any]:
    """The symbols in an expression, a View, or nested lists of them."""
    if isinstance(value, View):
        value = (value.shape, value.strides, value.offset)
    if isinstance(value, (tuple, list)):
        return _NONE.union(*[symbols_of(v) for v in value if type(v) is not int])
    return getattr(value, "free_symbols", _NONE)


def has_float(value: Any) -> bool:
    """Whether a number is computed with floats."""
    return isinstance(value, FloatExpr) or (isinstance(value, Node) and any(map(has_float, children(value))))


def step_symbols(step: Step) -> frozenset[Any]:
    """The symbols a step mentions, those of its loop axes excepted."""
    if isinstance(step, (Check, Define)):
        return symbols_of(step.condition if isinstance(step, Check) else step.value)
    if isinstance(step, Extern):
        return symbols_of((step.args, tuple(step.kwargs.values())))
    axes = (*step.axes, *step.reduce_axes)
    found = symbols_of([axis.extent for axis in axes])
    for instr in step.body:
        attr = (instr.attr,) if instr.op != "masked_load" else instr.attr
        found |= symbols_of([a.index if isinstance(a, (Load, Store)) else a for a in attr])
    return found - {axis.symbol for axis in axes}


__all__ = [
    "Axis", "Bind", "BoolExpr", "Buffer", "BufferKind", "Check", "Define", "Expr", "Extern", "FloatExpr", "Instr", "IntLike",
    "Load", "Loop", "NumberLike", "Program", "Step", "Store", "Symbol", "View", "bound_symbols", "has_float", "load_of", "scans",
    "step_symbols", "symbols_of",
]  # fmt: skip
