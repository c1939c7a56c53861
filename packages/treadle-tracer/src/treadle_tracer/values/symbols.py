"""The symbolic numbers of one trace: which dimensions and numbers get symbols, and the graph nodes that compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from treadle_shapes import evaluate
from treadle_shapes.expr import weight_of
from treadle_shapes.torch import begin_history, fake_like, raw_expr
from treadle_tracer.below_autograd import refuse_below_autograd
from treadle_tracer.computed_source import ComputedSource, Expression, is_computed_item
from treadle_tracer.decision_programs import Place
from treadle_tracer.dynamic import (
    DynamicSources,
    create_size,
    free_strides_of,
    hints_of,
    is_small_integer,
    stride_rules,
    strides_by,
)
from treadle_tracer.errors import InternalError, Unsupported
from treadle_tracer.source import AttrSource, Source, TupleItemSource
from treadle_tracer.values.base import Constant
from treadle_tracer.values.int64 import fits
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.unbacked import UnbackedNumbers, is_unbacked
from treadle_tracer.values.value import Value
from treadle_tracer.values.varying import KINDS, VaryingKind

if TYPE_CHECKING:
    from torch import fx
    from torch._subclasses.fake_tensor import FakeTensorMode

    from treadle_tracer.options import TracerOptions
    from treadle_tracer.values.value import TraceContext

# Parts of an expression, written out. A number computed by a larger one breaks the graph, and is a constant where it can be.
_HEAVIEST = 1000


class Symbols:
    """The table of symbols.

    dynamic     the dimensions of each source that are not specialised, each with the size to trace with where the tensor's own is 1;
                a source without dimensions is a number
    where       gives the user's stack
    oracle      decides conditions on numbers that were read from tensors (`values.outside_decisions`)
    env         the ShapeEnv, None until there is a symbol
    """

    def __init__(
        self,
        mode: FakeTensorMode,
        dynamic: Mapping[Source, Mapping[int, int]],
        options: TracerOptions,
        where: Callable[[], Any],
    ):
        self.mode = mode
        self.dynamic = dynamic if isinstance(dynamic, DynamicSources) else DynamicSources(dynamic)
        self.options = options
        self.where = where
        self.env: Any = None
        self.oracle: Callable[[Any], bool | None] | None = None
        self.sources: dict[Any, tuple[Source, int]] = {}
        self.inference_storages: set[int] = set()  # of tensors from outside that were made in inference mode
        # Tensors from outside that require a gradient and are no parameters, by the storages of their fake tensors.
        self.differentiable: dict[int, tuple[Source, torch.Tensor, torch.Tensor]] = {}
        asked = options.capture_scalars or options.fullgraph
        # Else only where the graph may check what it relies on, and Python runs the program where that does not hold.
        self.captures = asked or (options.capture_scalars is None and options.defer and options.guess)
        self.defers = options.defer
        self.guesses = options.guess
        self.expects_items = options.guess and options.expect_items
        self.foresees = options.foresee
        self.wants_one_graph = options.fullgraph
        self.takes_numbers = self.captures or options.defer
        self.assumes = self.captures and options.assume
        self.unbacked = UnbackedNumbers()
        self._nodes: dict[Any, fx.Node] = {}
        self._integers: dict[Source, SymbolicValue] = {}
        self._names: dict[Source, str] = {}
        self._taken: set[str] = set()
        self.computed_places: dict[Any, ComputedSource] = {}  # where expressions are found, by expression

    def dynamic_dims(self, source: Source, tensor: torch.Tensor) -> tuple[int, ...]:
        """The dimensions of this tensor that get symbols."""
        return tuple(hints_of(tensor, source, self.dynamic, self.options))

    def free_strides(self, source: Source, tensor: torch.Tensor) -> tuple[int, ...]:
        """The dimensions of this tensor whose strides get symbols."""
        return free_strides_of(tensor, source, self.dynamic)

    def fake_like(
        self, source: Source, tensor: torch.Tensor, dims: tuple[int, ...], free: tuple[int, ...] = ()
    ) -> torch.Tensor:
        """A fake tensor with the metadata of `tensor`, the sizes of the dimensions `dims` and the strides of `free` being symbols."""
        if tensor.requires_grad:
            refuse_below_autograd(source.text)
        if dims or free:
            fake = self._dynamic_fake(source, tensor, dims, free)
        else:
            meta = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
            fake = FakeTensor(self.mode, meta, tensor.device)
        if tensor.is_inference():
            self.inference_storages.add(fake.untyped_storage()._cdata)
        if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter):
            self.differentiable[fake.untyped_storage()._cdata] = (source, tensor, fake)
        if tensor.requires_grad and not tensor.is_leaf:
            begin_history(fake, fake_like(self.mode, fake))
        elif tensor.requires_grad:
            fake.requires_grad_(True)
        return fake

    def _dynamic_fake(
        self, source: Source, tensor: torch.Tensor, dims: tuple[int, ...], free: tuple[int, ...]
    ) -> torch.Tensor:
        import treadle_shapes.torch

        self.need_env()
        sizes: list[Any] = [None] * tensor.dim()
        hints = hints_of(tensor, source, self.dynamic, self.options)
        for dim in dims:
            symbol = create_size(self.env, tensor, self.name_of(source), dim, hints[dim])
            sizes[dim] = symbol
            self.sources[symbol] = (source, dim)
        exprs = [tensor.shape[d] if size is None else size for d, size in enumerate(sizes)]
        rules = stride_rules(tensor, dims, free)
        strides = strides_by(rules, exprs, partial(self._free_stride, tensor, source, free))
        with self.mode:
            return torch.empty_strided(
                [treadle_shapes.torch.sym_int(self.env, e) for e in exprs],
                [treadle_shapes.torch.sym_int(self.env, e) for e in strides],
                dtype=tensor.dtype,
                device=tensor.device,
            )

    def _free_stride(self, tensor: torch.Tensor, source: Source, free: tuple[int, ...], dim: int) -> Any:
        lower = 2 if dim in free else None  # without gaps it is another layout: see `dynamic.is_free_stride`
        return self.env.create_symbol(tensor.stride(dim), f"{self.name_of(source)}.stride()[{dim}]", lower=lower)

    def exclude_ones(self, fake: torch.Tensor) -> None:
        """Exclude size 1 from the dynamic sizes of a tensor: the program has asked for its layout, which may differ there."""
        from treadle_shapes import Ge
        from treadle_shapes.torch import expr_of

        for size in fake.shape:
            if isinstance(size, torch.SymInt):
                for symbol in getattr(expr_of(size), "free_symbols", ()):
                    if symbol in self.sources:
                        self.env.decide(Ge(symbol, 2))

    def need_env(self) -> None:
        """Make the environment if there is none."""
        if self.env is None:
            import treadle_shapes.torch

            self.env = treadle_shapes.ShapeEnv(where=self.where)
            self.env.oracle = self.oracle
            self.mode.shape_env = treadle_shapes.torch.fake_shape_env(self.env)  # type: ignore[assignment]
            self.mode.static_shapes = False

    def decides_at(self, place: Place) -> bool:
        """Whether a decision on numbers of outside tensors is made here: calls have not kept differing, and it is worth its cost."""
        return self.options.decide_on_inputs and not (
            place[:3] in self.dynamic.undecided or self.keeps_differing(place)
        )

    def keeps_differing(self, place: Place) -> bool:
        """Whether calls have shown that each is different here."""
        return place in self.dynamic.varying

    @property
    def uses_larger_sizes(self) -> bool:
        """Whether the trace has larger sizes than the call, in place of 1."""
        return self.dynamic.has_generalised

    def is_structural(self, source: Source) -> bool:
        """Whether a module at `source` is guarded by its structure, because earlier calls had different modules there."""
        return self.dynamic.is_structural(source)

    def is_dynamic_integer(self, source: Source | None, number: int) -> bool:
        """Whether the int at `source` gets a symbol, because it has changed between earlier calls."""
        return self.varies_at(source) and is_small_integer(number)

    def varies_at(self, source: Source | None) -> bool:
        """Whether the float or string at `source` is no constant: it has changed between earlier calls, or each call chooses it anew."""
        return source is not None and (source in self.dynamic or is_computed_item(source))

    def name_of(self, source: Source) -> str:
        """What the shape environment calls the number or the tensor at a source. Sources may share a text; names are unique."""
        name = self._names.get(source)
        if name is None:
            name = source.text
            while name in self._taken:
                name += "'"
            self._names[source] = name
            self._taken.add(name)
        return name

    def integer(self, tx: TraceContext, number: int, source: Source) -> Value:
        """The int at `source` as a symbol."""
        name = self.name_of(source)
        tx.guards.add_integer(source, name)  # every time: a part of the trace that is given up takes its guards with it
        found = self._integers.get(source)
        if found is None:
            import treadle_shapes.torch

            self.need_env()
            symbol = self.env.create_symbol(number, name, size=False)
            sym = treadle_shapes.torch.sym_int(self.env, symbol, number)
            found = self._integers[source] = SymbolicValue(None, sym, source, number)
        return found

    def float_number(self, tx: TraceContext, number: float, source: Source) -> Value:
        """The float at `source` as a symbol."""
        name = self.name_of(source)
        tx.guards.add_float(source, name)
        found = self._integers.get(source)
        if found is None:
            import treadle_shapes.torch

            self.need_env()
            sym = treadle_shapes.torch.sym_float(self.env, self.env.create_float(number, name))
            found = self._integers[source] = SymbolicValue(None, sym, source, number)
        return found

    def value(self, tx: TraceContext, number: Any, node: fx.Node | None) -> Value:
        """The Value of a SymInt, SymFloat or SymBool; a Constant for a truth that is known."""
        if isinstance(number, torch.SymBool):
            truth = self._truth(number)
            if truth is not None:
                return Constant(truth)
        expr = raw_expr(number)
        if weight_of(expr) > _HEAVIEST:  # guards, kernels and questions about it would write it out
            raise Unsupported("large-expression", f"an expression of {weight_of(expr)} parts")
        if isinstance(number, torch.SymInt) and not fits(self.env, expr):
            raise Unsupported("large-integer", f"{self.env.describe(expr)} has more than 64 bits")
        if node is not None:
            self._nodes.setdefault(self._key(number), node)
        return SymbolicValue(self._nodes.get(self._key(number)), number)

    def computed(self, tx: TraceContext, number: Any) -> Value:
        """The Value of a number that PyTorch has computed from numbers of the trace; the graph computes it, too."""
        value = self.value(tx, number, None)
        if isinstance(value, SymbolicValue) and self._key(number) not in self._nodes:
            value = self.value(tx, number, self.unbacked.write_number(tx, number))
        return value

    def size_value(self, tx: TraceContext, owner: TensorValue, dim: int, size: Any) -> Value:
        """One size of a tensor; sizes that are equal as expressions share a node."""
        key = self._key(size)
        if key not in self._nodes:
            if tx.vmap_levels and owner.source is None:  # a node of a tensor in the body would go with the body
                return self.computed(tx, size)
            self._nodes[key] = tx.graph.call(
                "call_function", torch.ops.aten.sym_size.int, (owner.node(tx), dim), {}, size, tx.stack_trace()
            )
        return SymbolicValue(self._nodes[key], size)

    def node_of(self, tx: TraceContext, value: SymbolicValue) -> fx.Node:
        key = self._key(value.sym)
        if key not in self._nodes and value.source is not None:
            self._nodes[key] = tx.graph.placeholder(value.source, value.obj, value.sym)
        node = self._nodes.get(key)
        if node is None:
            raise InternalError("symbols", f"no graph node computes {value.sym}")
        return node

    def forget_nodes(self, gone: set[fx.Node]) -> None:
        """These nodes have been erased."""
        if gone:
            self._nodes = {key: node for key, node in self._nodes.items() if node not in gone}
            self.unbacked.forget_nodes(gone)

    def _truth(self, condition: torch.SymBool) -> bool | None:
        """The truth, decided if need be. Of unbacked numbers: the truth that follows from facts, or None."""
        expr = raw_expr(condition)  # type: ignore[attr-defined]
        return self.env.prove(expr) if self.env.is_unbacked(expr) else bool(condition)

    def node_of_symbol(self, tx: TraceContext, symbol: Any) -> fx.Node:
        """The node that computes a backed symbol: a size of an input, or an input itself."""
        place = self.sources.get(symbol)
        if place is not None:
            owner = tx.tensor_at(place[0])
            return self.size_value(tx, owner, place[1], owner.fake.shape[place[1]]).node(tx)
        for number in self._integers.values():
            if raw_expr(number.sym) is symbol:
                return number.node(tx)
        raise Unsupported("data-dependent", f"{self.env.source_of(symbol)} stands in no graph node")

    def choices_on(self, is_meant: Callable[[Source], bool]) -> int:
        """How often the program has chosen between paths by a number at such a source: by a comparison of floats, or whether ints are
        equal."""
        if self.env is None:
            return 0
        meant = {raw_expr(number.sym) for place, number in self._integers.items() if is_meant(place)}
        floats = {raw_expr(n.sym) for n in self._integers.values() if isinstance(n.sym, torch.SymFloat)}
        found = [guard.expr for guard in self.env.guards if not meant.isdisjoint(guard.expr.free_symbols)]
        return sum(expr.op[:2] in ("eq", "ne") or not floats.isdisjoint(expr.free_symbols) for expr in found)

    def place_of(self, symbol: Any) -> Source | None:
        """Where calls find the value of a backed symbol; None for a stride."""
        size = self.sources.get(symbol)
        if size is not None:
            return TupleItemSource(AttrSource(size[0], "shape"), size[1])
        return next((place for place, number in self._integers.items() if raw_expr(number.sym) is symbol), None)

    def outside_number(self, tx: TraceContext, number: torch.SymInt) -> tuple[Source, int] | None:
        """Where calls find a number that follows from sizes and ints, and what this call has there; None where only the graph knows it."""
        value = SymbolicValue(None, number)
        place = _place_of_number(tx, value)
        return None if place is None else (place, _hint_of_number(tx, value))

    def _key(self, number: Any) -> Any:
        return (type(number), raw_expr(number))


# ---- dynamic numbers as keys and positions


def _place_of_number(tx: TraceContext, value: SymbolicValue) -> Source | None:
    """Where calls find a dynamic number: its own place, or what computes it from sizes and ints."""
    if value.source is not None or value.python_type() is not int or is_unbacked(tx, value):
        return value.source
    expr, known = raw_expr(value.sym), tx.symbols.computed_places
    if expr not in known:
        symbols = tuple(sorted(expr.free_symbols, key=lambda symbol: symbol.order))
        places = [tx.symbols.place_of(symbol) for symbol in symbols]
        if not places or None in places:
            return None
        described = tx.symbols.env.describe(expr)
        known[expr] = ComputedSource(Expression(expr, symbols), tuple(places), lambda *texts: described)
    return known[expr]


def _hint_of_number(tx: TraceContext, value: SymbolicValue) -> Any:
    if value.obj is not None:
        return value.obj
    expr = raw_expr(value.sym)
    return evaluate(expr, {symbol: tx.symbols.env.hints[symbol] for symbol in expr.free_symbols})


KINDS[SymbolicValue] = VaryingKind(_place_of_number, _hint_of_number)
