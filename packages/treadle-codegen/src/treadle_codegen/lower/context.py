"""The lowering of one graph in progress: its buffers and steps, and the operations that lowerings are made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treadle_codegen.costs import Costs
from treadle_codegen.ir.loops import (
    Buffer,
    BufferKind,
    Check,
    Extern,
    IntLike,
    Loop,
    NumberLike,
    Program,
    Step,
    View,
    symbols_of,
)
from treadle_codegen.ir.ops import LOW_FLOATS, OPS, POSITIONS, compute_dtype, reduced_dtype
from treadle_codegen.lower.indexing import (
    Shape,
    as_shape,
    broadcast_index,
    contiguous,
    is_dense,
    linear,
    product,
    raw_number,
    same_strides,
)
from treadle_codegen.lower.live import LiveValues
from treadle_codegen.lower.loop_builder import LoopBuilder
from treadle_codegen.lower.nest import LoopElement, Nest, layout_of_reads, record_nest
from treadle_codegen.lower.split_axes import split_axes
from treadle_codegen.lower.tensor_expr import NOTHING, Index, TensorExpr
from treadle_shapes.expr import Expr, Ne, Symbol, substitute
from treadle_shapes.torch import env_of

_FOLDS = {
    "sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "bitwise_or", "all": "bitwise_and",
}  # fmt: skip


def _rounded(o: LoopBuilder, value: int, dtype: torch.dtype, result: torch.dtype) -> int:
    """An element of `dtype`, of which an operator makes a `result`.

    Between operators on tensors of one low precision, elements stay float32. What another dtype follows from (comparisons, `isinf`, `any`,
    conversions) sees them rounded, as they are stored: somewhere `y == y.max()` holds.
    """
    return o.cast(o.cast(value, dtype), torch.float32) if dtype in LOW_FLOATS and dtype != result else value


class Lowering:
    """State of one `lower_graph`. `val` is the fake result of the node being lowered (its meta["val"]).

    `costs` and `dtypes` are the target's; loops compute in no other dtypes. `device` is where they run; buffers elsewhere are
    `foreign`, and only operators take them.
    """

    def __init__(self, costs: Costs, dtypes: frozenset[torch.dtype], device: torch.device | None = None) -> None:
        self.costs = costs
        self.dtypes = dtypes
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.device = device
        self.foreign: set[str] = set()
        self.val: Any = None
        self.name = ""
        self.node: torch.fx.Node | None = None
        self.used_results: frozenset[int] = frozenset()  # which results of a node with several are used
        self.symbols: set[Any] = set()  # defined so far: by the inputs, by externs
        self.offsets: set[Any] = set()  # symbols for where views start in memory, which nothing here needs
        self.input_symbols: frozenset[Any] = frozenset()
        self.kept: set[str] = set()  # steps that run even if nothing reads what they write: they may raise
        self.live = LiveValues({}, {})
        self.examined: dict[torch.fx.Node, Any] = {}  # what `lower.loop_checks` has found out about nodes
        self._taken: dict[str, int] = {}

    def as_traced(self, value: Any) -> Any:
        """The expression under a symbolic number as it was computed; symbols unknown here as its environment writes them."""
        raw = raw_number(value)
        unknown = [s for s in symbols_of(raw) - self.symbols if isinstance(s, Symbol)]
        if not unknown:
            return raw
        env = env_of(value)
        assert env is not None
        return substitute(raw, {s: env.simplify(s) for s in unknown})  # type: ignore[arg-type]

    # -- names and buffers ---------------------------------------------------------------------------------------------

    def fresh(self, base: str) -> str:
        """A name that no buffer or step has yet."""
        count = self._taken.get(base)
        self._taken[base] = 0 if count is None else count + 1
        return base if count is None else self.fresh(f"{base}_{count}")

    def new_buffer(
        self,
        shape: Shape,
        dtype: torch.dtype,
        strides: Shape | None = None,
        kind: BufferKind = BufferKind.TEMP,
        name: str = "",
    ) -> Buffer:
        name = self.fresh(name or self.name)
        buffer = Buffer(name, dtype, shape, contiguous(shape) if strides is None else strides, kind)
        self.buffers[name] = buffer
        return buffer

    def constant(self, tensor: torch.Tensor, name: str = "constant") -> TensorExpr:
        """A tensor known while compiling."""
        buffer = self.new_buffer(tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), BufferKind.CONSTANT, name)
        self.constants[buffer.name] = tensor
        return TensorExpr.stored(view_of(buffer), tensor.dtype)

    # -- building values -----------------------------------------------------------------------------------------------

    def pointwise(
        self,
        fn: Callable[..., int],
        operands: Sequence[Any],
        dtype: torch.dtype,
        *,
        shape: Shape,
        compute: torch.dtype | None = None,
        cost: int = 1,
    ) -> TensorExpr:
        """`fn(o, *scalars)` over operands broadcast to `shape`.

        Operands are TensorExprs, numbers or index expressions, converted to `compute` first (None: left as they are, numbers
        become int64 or float64 constants). The result of `fn` is converted to `dtype`.
        """
        operands = [self._for_broadcast(x, shape) if isinstance(x, TensorExpr) else x for x in operands]
        tensors = [x for x in operands if isinstance(x, TensorExpr)]
        result_dtype = compute_dtype(dtype)

        def element(o: LoopBuilder, index: Index) -> int:
            scalars = []
            for x in operands:
                if isinstance(x, TensorExpr):
                    value = x.element(o, index if x.shape == shape else broadcast_index(index, x.shape))
                    value = _rounded(o, value, x.dtype, dtype)
                else:
                    value = o.number(x, compute or _number_dtype(x))
                scalars.append(value if compute is None else o.cast(value, compute))
            return o.cast(fn(o, *scalars), result_dtype)

        total = cost + sum(x.cost for x in tensors)
        reads = NOTHING.union(*(x.reads for x in tensors))
        if total > self.costs.max_expression or len(reads) > self.costs.max_reads:
            storable = [x for x in tensors if not x.in_registers]
            for x in sorted(storable, key=lambda x: (len(x.reads), x.cost))[-2:]:
                if x.cost > 0:
                    self.realize(x)
            total = cost + sum(x.cost for x in tensors)
            reads = NOTHING.union(*(x.reads for x in tensors))
        made = TensorExpr.computed(shape, dtype, element, total, reads)
        made.in_registers = any(x.in_registers for x in tensors)
        return made

    def _for_broadcast(self, x: TensorExpr, shape: Shape) -> TensorExpr:
        """Store an operand first if broadcasting would compute it many times over."""
        if (
            x.cost >= self.costs.recompute
            and x.storage is None
            and not x.in_registers
            and x.shape != shape
            and product(x.shape) != product(shape)
        ):
            self.realize(x)
        return x

    def full(self, shape: Shape, value: Any, dtype: torch.dtype) -> TensorExpr:
        """A tensor of one number (or size expression)."""

        def element(o: LoopBuilder, _index: Index) -> int:
            return o.cast(o.number(value, compute_dtype(dtype)), compute_dtype(dtype))

        return TensorExpr.computed(shape, dtype, element, 0)

    def reduce(
        self,
        kind: str,
        x: TensorExpr,
        dims: Sequence[int],
        *,
        keepdim: bool = False,
        dtype: torch.dtype,
        accumulate: torch.dtype,
        before: Callable[..., int] | None = None,
        after: Callable[..., int] | None = None,
    ) -> TensorExpr:
        """Reduction of `x` over `dims`: stored, or computed by each user if it is over a handful of elements.

        Elements are converted to `accumulate`, `before(o, value, index)` is applied, the reduction runs, `after(o, value)`
        finishes it once per result, and the result is converted to `dtype`.
        """
        kept = tuple([1 if d in dims else s for d, s in enumerate(x.shape)])
        shape = kept if keepdim else tuple([s for d, s in enumerate(x.shape) if d not in dims])
        remaining = [d for d in range(x.dim) if keepdim or d not in dims]

        def operand(o: LoopBuilder, index: Index, reduced: dict[int, IntLike]) -> int:
            at = tuple([reduced[d] if d in reduced else index[remaining.index(d)] for d in range(x.dim)])
            value = o.cast(_rounded(o, x.element(o, at), x.dtype, dtype), accumulate)
            return value if before is None else before(o, value, at)

        def unrolled(o: LoopBuilder, index: Index) -> int:
            ranges = [range(size) for size in sizes if isinstance(size, int)]
            value = None
            for positions in itertools.product(*ranges):
                term = operand(o, index, dict(zip(dims, positions, strict=True)))
                value = term if value is None else o.op(_FOLDS[kind], value, term)
            assert value is not None
            return o.cast(value if after is None else after(o, value), compute_dtype(dtype))

        def element(o: LoopBuilder, index: Index, reduced: dict[int, IntLike]) -> int:
            value = operand(o, index, reduced)
            if any(x.shape[d] != 1 for d in dims):
                value = o.reduce(kind, value, reduced_dtype(kind, o.dtype_of(value)))
            elif kind in POSITIONS:
                value = o.const(0, torch.int64)
            if after is not None:
                value = after(o, value)
            return o.cast(value, compute_dtype(dtype))

        sizes = [x.shape[d] for d in dims]
        count = product(sizes)
        few = isinstance(count, int) and 0 < count <= self.costs.max_unrolled
        if few and kind in _FOLDS and x.cost * count <= self.costs.recompute:
            assert isinstance(count, int)
            cost = count * (x.cost + 1 + (before is not None)) + (self.costs.recompute if after is not None else 0)
            return TensorExpr.computed(shape, dtype, unrolled, cost, x.reads)
        reduced = dict(zip(dims, sizes, strict=True))
        return self._store_loop(shape, dtype, element, reduced, self._hint(shape), any_layout=True)

    # -- storing -------------------------------------------------------------------------------------------------------

    def realize(self, x: TensorExpr, strides: Shape | None = None) -> View:
        """Where `x` stands in memory, storing it first if it does not.

        With `strides`, a value that must be stored here gets them; a value already stored keeps its own.
        """
        view = x.storage
        if view is not None:
            return view
        if x.base is not None and strides is None and product(x.base.shape) == product(x.shape):
            self.realize(x.base)
            view = x.storage
            if view is not None:
                return view
        free = strides is None
        stored = self._store_loop(
            x.shape,
            x.dtype,
            lambda o, index, _: x.element(o, index),
            {},
            strides or x.layout,
            x.origin,
            any_layout=free,
        )
        assert stored.storage is not None
        x.store_in(stored.storage)
        return stored.storage

    def copy(
        self,
        x: TensorExpr,
        strides: Shape | None = None,
        kind: BufferKind = BufferKind.TEMP,
        mode: str | None = None,
    ) -> TensorExpr:
        """A stored copy, whatever `x` is; `mode` is that of the stores. ATen copies what loops cannot compute."""
        foreign = x.storage is not None and x.storage.buffer in self.foreign
        if x.dtype not in self.dtypes or foreign:
            return self.clone(x, contiguous(x.shape) if strides is None else strides, kind)
        return self._store_loop(
            x.shape, x.dtype, lambda o, index, _: x.element(o, index), {}, strides, x.origin, kind, mode=mode
        )

    def clone(self, x: TensorExpr, strides: Shape, kind: BufferKind) -> TensorExpr:
        """A copy that ATen makes of a stored tensor, of whatever dtype and layout."""
        view = x.storage
        assert view is not None, "a tensor that loops cannot compute is always stored"
        buffer = self.new_buffer(x.shape, x.dtype, strides, kind)
        clone, name = torch.ops.aten.clone.default, self.fresh("extern_clone")
        self.steps.append(Extern(name, clone, (view,), {}, (buffer.name,), origins=(x.origin,)))
        return TensorExpr.stored(view_of(buffer), x.dtype)

    def realize_for_reuse(self, x: TensorExpr) -> TensorExpr:
        """Store `x` if it will be read several times and recomputing it costs more than memory."""
        if self.why_store_for_reuse(x):
            self.realize(x)
        return x

    def settle_for_moments(self, x: TensorExpr) -> None:
        """Have a mean of `x` and the differences from it computed of the same numbers.

        Moments see elements rounded, since they are float32. Equal elements differ from their mean by nothing then, in the backward pass,
        too, which has them from memory; a normalisation divides what is left by the square root of `eps`.
        """
        self.realize_for_reuse(x)
        x.round_elements()

    def why_store_for_reuse(self, x: TensorExpr) -> str | None:
        """Why a value with several readers should be stored, or None if each may compute it."""
        if x.storage is not None or x.in_registers:
            return None
        if x.cost > self.costs.recompute:
            return f"recomputing costs {x.cost}"
        full = [name for name in x.reads if self.buffers[name].shape and _may_be_large(self.buffers[name], x)]
        return f"it reads {len(full)} tensors" if len(full) > 1 else None

    def why_store_for_broadcast(self, x: TensorExpr) -> str | None:
        """Why a value that is seen at many places should be stored, or None if each place may compute it: a mask of positions."""
        if x.storage is not None or x.in_registers or x.cost <= 1:
            return None
        if x.cost >= self.costs.recompute:
            return f"recomputing costs {x.cost}"
        large = [name for name in x.reads if _may_be_large(self.buffers[name], x)]
        return f"it reads {', '.join(large)}" if large else None

    def require_elements(self, operator: str, x: TensorExpr, dims: Sequence[int], *, whole: bool = False) -> None:
        """Raise at run time, as eager does, where a reduction without identity runs over nothing; `whole`: no dim was given."""
        for d in dims:
            size = x.shape[d]
            if isinstance(size, Expr) and not (isinstance(size, Symbol) and (size.lower or 0) > 0):
                given = f"dim {d} to have non-zero size."
                missing = (
                    "dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument."
                )
                message = f"{operator}(): Expected reduction {missing if whole else given}"
                error = "RuntimeError" if whole and operator in ("max", "min") else "IndexError"
                self.steps.append(Check(self.fresh("check_elements"), Ne(size, 0), message, error))

    def write_into(self, target: View, x: TensorExpr) -> None:
        """A loop that stores `x` into a part of a buffer; shapes agree."""
        nest = record_nest(target.shape, target.strides, lambda o, index, _: x.element(o, index), {})
        self._append_loop(nest, target)

    def overwrite(self, target: View, nest: Nest | None) -> None:
        """A loop that stores a recorded value over a part of a buffer that has been written before."""
        self._append_loop(nest, target, "overwrite")

    def _hint(self, shape: Shape) -> Shape | None:
        """Strides that eager gives the node being lowered, when it has this shape and dense memory."""
        val = self.val
        if isinstance(val, torch.Tensor) and len(val.shape) == len(shape):
            strides = as_shape(val.stride())
            if as_shape(val.shape) == shape and is_dense(shape, strides):
                return strides
        return None

    def _store_loop(
        self,
        shape: Shape,
        dtype: torch.dtype,
        element: LoopElement,
        reduced: dict[int, IntLike],
        strides: Shape | None = None,
        origin: str = "",
        kind: BufferKind = BufferKind.TEMP,
        *,
        any_layout: bool = False,
        mode: str | None = None,
    ) -> TensorExpr:
        """A new buffer and the loop that fills it; with `any_layout`, `strides` give way to the order of what is read."""
        assert dtype in self.dtypes, dtype
        strides = contiguous(shape) if strides is None else strides
        nest = record_nest(shape, strides, element, reduced)
        if any_layout and (better := layout_of_reads(nest, shape, self.costs.min_reordered)) is not None:
            strides = better
            nest = record_nest(shape, strides, element, reduced)
        view = view_of(self.new_buffer(shape, dtype, strides, kind, origin or self.name))
        self._append_loop(nest, view, mode)
        return TensorExpr.stored(view, dtype)

    def _append_loop(self, nest: Nest | None, view: View, mode: str | None = None) -> None:
        """The loop that stores a nest's value in `view`; nothing for a tensor without elements."""
        if nest is None:
            return
        o, buffer = nest.builder, self.buffers[view.buffer]
        o.store(buffer.name, linear(nest.index, view.strides, view.offset), nest.value, buffer.dtype, mode)
        origins = o.origins if self.name in o.origins else {**o.origins, self.name: None}
        loop = Loop(self.fresh(f"loop_{buffer.name}"), nest.axes, nest.reduce_axes, tuple(o.body), tuple(origins))
        self.steps.append(split_axes(loop))

    def program(self, inputs: Sequence[str], outputs: Sequence[View | NumberLike | None]) -> Program:
        """Everything lowered so far as a program."""
        ordered = tuple(sorted(self.input_symbols, key=lambda s: s.name))
        return Program(
            self.buffers, tuple(inputs), tuple(outputs), self.steps, ordered, self.constants, device=self.device
        )


def view_of(buffer: Buffer) -> View:
    """A whole buffer."""
    return View(buffer.name, buffer.shape, buffer.strides, buffer.offset)


def _number_dtype(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, int) else torch.float64


def _may_be_large(buffer: Buffer, x: TensorExpr) -> bool:
    """Whether reading that buffer costs about as much as reading a tensor of x's size."""
    theirs, mine = product(buffer.shape), product(x.shape)
    return not (isinstance(theirs, int) and isinstance(mine, int)) or 4 * theirs >= mine


def cost_of(*ops: str) -> int:
    """Total cost of the named scalar operations."""
    return sum(OPS[name].cost for name in ops)


__all__ = ["Lowering", "cost_of", "same_strides", "view_of"]
