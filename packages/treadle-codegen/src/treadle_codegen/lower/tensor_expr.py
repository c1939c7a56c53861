"""Tensors during lowering: a shape, a dtype, and how to compute one element.

A `TensorExpr` is either *stored* (a strided view of a buffer), *computed* (a function from an index to a scalar) or *viewed*
(an index map over another tensor). `element` composes them; `Lowering.realize` stores a computed one, and every view of
it then becomes a view of the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from treadle_codegen.ir.loops import IntLike, View
from treadle_codegen.ir.ops import LOW_FLOATS
from treadle_codegen.lower.indexing import Shape, linear, product
from treadle_codegen.lower.loop_builder import LoopBuilder

Index = tuple[IntLike, ...]
Element = Callable[[LoopBuilder, Index], int]
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ViewMap:
    """A view of any tensor: its shape, where each element comes from, and its strides over strided memory (None: not strided)."""

    shape: Shape
    index: Callable[[Index], Index]
    strided: Callable[[View], View | None]


@dataclass(frozen=True, slots=True)
class Patch:
    """How a tensor differs from `old`, which stands in memory: where `old` has `part`, it has the elements of `source`."""

    old: View
    part: View
    source: TensorExpr


class TensorExpr:
    """See the module docstring.

    `cost` estimates the arithmetic of one element (ir.ops.Cost) and `reads` names the buffers it loads from; both
    steer realisation only. `layout` are the strides it gets when it is stored, if not contiguous; `gaps` are the strides
    that it has in eager, where they are not dense. `patch` says how it differs from something in memory, where it was made
    of that (`lower.overwrite`). `in_registers` says that it is made of the scores of an attention, whose loop computes them
    (`lower.attention`): it is stored only where another loop needs it.
    """

    __slots__ = (
        "_compute",
        "_storage",
        "_viewed",
        "base",
        "cost",
        "dtype",
        "gaps",
        "in_registers",
        "layout",
        "origin",
        "patch",
        "reads",
        "shape",
    )

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self.cost = 0
        self.reads = NOTHING
        self.layout: Shape | None = None
        self.gaps: Shape | None = None
        self.origin = ""
        self.base: TensorExpr | None = None
        self.patch: Patch | None = None
        self.in_registers = False
        self._viewed: ViewMap | None = None
        self._compute: Element | None = None
        self._storage: View | None = None

    @classmethod
    def stored(cls, view: View, dtype: torch.dtype) -> TensorExpr:
        made = cls(view.shape, dtype)
        made.store_in(view)
        return made

    @classmethod
    def computed(
        cls, shape: Shape, dtype: torch.dtype, compute: Element, cost: int, reads: frozenset[str] = NOTHING
    ) -> TensorExpr:
        """`compute` gives a scalar of `compute_dtype(dtype)` for an index with one entry per dimension of `shape`."""
        made = cls(shape, dtype)
        made._compute, made.cost, made.reads = compute, cost, reads
        return made

    def view(self, view: ViewMap) -> TensorExpr:
        """This tensor seen through a view."""
        made = TensorExpr(view.shape, self.dtype)
        made.base, made._viewed, made.cost, made.reads = self, view, self.cost, self.reads
        made.in_registers = self.in_registers
        if self.patch is not None:
            old = view.strided(self.patch.old)
            made.patch = None if old is None else replace(self.patch, old=old)
        return made

    @property
    def storage(self) -> View | None:
        """Where the elements stand in memory, if they do as one strided view."""
        if self._storage is None and self.base is not None and self._viewed is not None:
            stored = self.base.storage
            self._storage = None if stored is None else self._viewed.strided(stored)
            if self._storage is not None:
                self.store_in(self._storage)
        return self._storage

    def store_in(self, view: View) -> None:
        """From now on the elements are read from there."""
        self._storage = view
        self.cost, self.reads = 0, frozenset((view.buffer,))

    def round_elements(self) -> None:
        """From now on an element of low precision is what memory would hold of it, not the float32 that it was computed as."""
        compute, dtype = self._compute, self.dtype
        if self.storage is not None or dtype not in LOW_FLOATS:
            return
        if self.base is not None:
            self.base.round_elements()
        elif compute is not None:
            self._compute = lambda o, index: o.cast(o.cast(compute(o, index), dtype), torch.float32)

    def relabel(self, shape: Shape) -> None:
        """The same sizes in another writing, that of the graph."""
        if self.shape != shape:
            self.shape = shape
            if self._storage is not None:
                self._storage = replace(self._storage, shape=shape)

    def element(self, o: LoopBuilder, index: Index) -> int:
        """The scalar at `index`, of the compute dtype."""
        view = self.storage
        if self.origin:
            o.origins[self.origin] = None
        if view is not None:
            return o.load(view.buffer, linear(index, view.strides, view.offset), self.dtype)
        if self._compute is not None:
            return self._compute(o, index)
        assert self.base is not None and self._viewed is not None
        return self.base.element(o, self._viewed.index(index))

    @property
    def numel(self) -> IntLike:
        return product(self.shape)

    @property
    def dim(self) -> int:
        return len(self.shape)


def normalize_dim(dim: int, rank: int) -> int:
    """Dimension counted from the front; a tensor without dimensions has one for this purpose, as in torch."""
    return dim % max(rank, 1)


def normalize_dims(dims: Sequence[int] | int | None, rank: int) -> list[int]:
    """Sorted distinct dimensions; None and () mean all of them."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    given = [dims] if isinstance(dims, int) else dims
    return sorted({normalize_dim(d, rank) for d in given}) if rank else []
