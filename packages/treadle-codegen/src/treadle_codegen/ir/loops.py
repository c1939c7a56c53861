"""The loop IR: what lowering produces, the scheduler fuses and the renderers print.

A `Program` is a list of steps over named buffers. A step is either a `Loop` (one perfect loop nest whose body is a
short SSA program over scalars) or an `Extern` (a call of an ATen operator on whole tensors). Nothing here knows a
target language.

Contract of a `Loop` (checked by `ir.verify`):

- `body` is in SSA form: instruction `k` defines value `k`; arguments refer to smaller indices only.
- Index expressions use the symbols of `axes` and `reduce_axes` and size symbols only, and stay inside the buffer.
- At most the instructions up to and including the last `reduce` may depend on `reduce_axes`; instructions after it run
  once per point of `axes`. A loop without `reduce_axes` has no `reduce`.
- A `store` is not read again in the same loop; two points of the iteration space never store to the same element,
  except with `mode="add"` (scatter).
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

from treadle_shapes.expr import BoolExpr, Expr, Symbol

IntLike = int | Expr


class BufferKind(Enum):
    """Who owns a buffer's memory."""

    INPUT = "input"  # argument of the compiled graph, different memory on every call
    STATIC = "static"  # parameter or buffer of a module: the same tensor object on every call
    CONSTANT = "constant"  # tensor made while compiling, kept by the compiled graph
    TEMP = "temp"  # written and read by steps; planned by schedule.memory
    OUTPUT = "output"  # fresh memory on every call, handed to the caller


@dataclass(frozen=True, slots=True)
class Buffer:
    """A strided region of memory: `shape`, `strides` and `offset` in elements, `dtype` as torch names it."""

    name: str
    dtype: torch.dtype
    shape: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    kind: BufferKind
    offset: IntLike = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    opaque: bool = False  # memory in a layout only externs understand (packed weights): passed on whole


@dataclass(frozen=True, slots=True)
class View:
    """A strided view of a buffer as an argument of an `Extern` or an output of the program; offset from the buffer's own first element."""

    buffer: str
    shape: tuple[IntLike, ...]
    strides: tuple[IntLike, ...]
    offset: IntLike = 0


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop `for symbol in range(extent)`."""

    symbol: Symbol
    extent: IntLike


@dataclass(frozen=True, slots=True)
class Load:
    """Where a `load` reads: `buffer[index]` (index in elements from the buffer's first); `other` is the value when `mask` is false."""

    buffer: str
    index: IntLike


@dataclass(frozen=True, slots=True)
class Store:
    """Where a `store` writes; `mode` is None or "add"."""

    buffer: str
    index: IntLike
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Instr:
    """One SSA instruction. `op` is a key of `ir.ops.OPS`; `args` are indices of earlier instructions.

    `attr` by op: `load` Load, `store` Store, `const` the Python number, `index` an Expr (the integer value of an index expression),
    `reduce` the kind ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"), `indirect_load`/`indirect_store` a
    `(buffer, strides, sizes)` triple whose args are the per-dimension indices (bounds are checked at run time where eager checks them),
    `masked_load` (Load, condition BoolExpr, other number) for padding and cat: reads memory only where the condition holds,
    `cast` the target dtype (also in `dtype`), else None.
    """

    op: str
    args: tuple[int, ...]
    dtype: torch.dtype
    attr: Any = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop nest; see the module docstring for its contract."""

    name: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    body: tuple[Instr, ...]
    origins: tuple[str, ...] = ()  # names of the ATen nodes it stands for, for comments, logs and errors


@dataclass(frozen=True, slots=True)
class Extern:
    """A call of `op` (an OpOverload). `args`/`kwargs` hold `View`s, numbers, dtypes and nested lists of them.

    `outputs` are the buffers that receive the results. With `out_variant` the op is an `.out` overload and the host passes
    the (pre-allocated, planned) output buffers as its out arguments; otherwise the results are fresh tensors made by the op.
    """

    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str, ...]
    out_variant: bool = False
    origins: tuple[str, ...] = ()


Step = Loop | Extern


@dataclass(slots=True)
class Program:
    """A whole graph. `outputs` are Views of buffers, integers (sizes), or None, in the order of the graph's output node."""

    buffers: dict[str, Buffer]
    inputs: tuple[str, ...]  # buffer or size-symbol names in the order of the placeholders
    outputs: tuple[View | IntLike | None, ...]
    steps: list[Step]
    size_symbols: tuple[Symbol, ...] = ()
    constants: dict[str, torch.Tensor] = field(default_factory=dict)


__all__ = [
    "Axis", "BoolExpr", "Buffer", "BufferKind", "Extern", "Instr", "IntLike", "Load", "Loop", "Program", "Step", "Store", "View",
]  # fmt: skip
