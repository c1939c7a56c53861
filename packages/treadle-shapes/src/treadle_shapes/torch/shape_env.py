"""torch.SymInt, SymFloat and SymBool on a ShapeEnv of this package, through FakeTensorMode and meta kernels.

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=fake_shape_env(env))
    batch = env.create_symbol(x.shape[0], "L['x'].size()[0]")
    fake = fake_tensor(mode, x, (batch, None))          # None: that size stays a constant

What PyTorch's Python side asks of a `ShapeEnv` (torch 2.11 - 2.13: `torch/_subclasses/fake_tensor.py`, `fake_impls.py`,
`meta_utils.py`, and the free functions on SymInts they call) is answered by `FakeShapeEnv`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses._fake_tensor_utils import _DeconstructedSymNode

from treadle_shapes.env import ShapeEnv
from treadle_shapes.errors import UsageError
from treadle_shapes.floats import FloatExpr, FloatLike, FloatSymbol
from treadle_shapes.interop_sympy import from_sympy, to_sympy
from treadle_shapes.logic import Eq, Ge, Le, Lt, Ne
from treadle_shapes.nodes import BoolExpr, Expr, IntLike, Node, Symbol, free_symbols
from treadle_shapes.rules import ceildiv, maximum, minimum, where
from treadle_shapes.sym_node import SymNode, strides_ascend
from treadle_shapes.torch import fast_kernels, older_releases
from treadle_shapes.torch.operators.declare import corrected_by


def _keep_our_nodes() -> None:
    """Let FakeTensorMode's cache hold our nodes: it rebuilds any other node as PyTorch's own, on PyTorch's ShapeEnv."""
    original = _DeconstructedSymNode.from_node

    def from_node(node: Any) -> _DeconstructedSymNode:
        return _KeptNode(node) if isinstance(node, SymNode) else original(node)

    _DeconstructedSymNode.from_node = staticmethod(from_node)


def _convert_layout(mode: Any, t: torch.Tensor | None, layout: torch.memory_format) -> torch.Tensor | None:
    if t is None:
        return None
    with mode:
        if t.dim() == 3 and layout == torch.channels_last:
            return t.unsqueeze(2).to(memory_format=layout).squeeze(2)
        return t.to(memory_format=layout)


def _convolution_layout(adapter: FakeShapeEnv, mode: Any, func: Any, args: Any, kwargs: Any) -> torch.memory_format:
    """The layout the real convolution gives its result. It depends on the layouts of input and weight; what the choice of
    a kernel asks about the sizes meanwhile does not matter for it and is answered without guards."""
    from torch.fx.operator_schemas import normalize_function

    bound = normalize_function(func, args, kwargs, normalize_to_only_use_kwargs=True)
    assert bound is not None, f"{func} does not match its schema"
    given = bound.kwargs
    image, weight = given["input"], given["weight"]
    suggested = {torch._prims_common.suggest_memory_format(t) for t in (image, weight)}
    if suggested == {torch.contiguous_format} or not (
        image._has_symbolic_sizes_strides or weight._has_symbolic_sizes_strides
    ):
        return torch.preserve_format
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    choice = {name: given[name] for name in names} | {"bias": given.get("bias")}
    if choice["bias"] is None:
        choice["bias_sizes"] = given.get("bias_sizes")
    with mode, adapter.env.suppress_guards():
        backend = torch._C._select_conv_backend(image, weight, **choice)
        if weight.dim() == 3:
            image, weight = image.contiguous().unsqueeze(2), weight.unsqueeze(2)
        return torch._C._conv_determine_backend_memory_format(image, weight, backend)


def _keep_convolution_layouts() -> None:
    """Give fake convolutions with symbolic sizes the layout of the real ones: for nodes without hint (see
    `SymNode.has_hint`) PyTorch's fake kernel leaves out that step, and the result would always be contiguous.
    `_convolution` has a fake kernel of its own from torch 2.13 on; before, it runs as its parts."""
    kernels = fake_impls.op_implementations_dict
    for func in corrected_by("layouts of convolutions"):
        if func in kernels:
            kernels[func] = _with_layout(kernels[func])


def _with_layout(original: Any) -> Any:
    def convolution(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(mode, func, *args, **kwargs)
        if not isinstance(mode.shape_env, FakeShapeEnv):
            return out
        layout = _convolution_layout(mode.shape_env, mode, func, args, kwargs)
        if layout is torch.preserve_format:
            return out
        if isinstance(out, tuple):
            return (*[_convert_layout(mode, t, layout) for t in out[:2]], *out[2:])
        return _convert_layout(mode, out, layout)

    return convolution


def _say_sizes_of_slices() -> None:
    """Let the size of a slice whose ends only the run can tell be the formula of the operator. Fake kernels make a symbol for it (torch
    2.11 for any end that may lie outside, 2.13 where the sign of an end is open), and nothing defines that: a view has no kernel to ask."""
    original = fake_impls.op_implementations_dict[torch.ops.aten.slice.Tensor]

    def slice_forward(
        mode: Any, func: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
    ) -> Any:
        out = original(mode, func, x, dim, start, end, step)
        adapter = mode.shape_env
        size = out.shape[dim]
        symbol = size.node.value if isinstance(adapter, FakeShapeEnv) and isinstance(size, torch.SymInt) else None
        if isinstance(symbol, Symbol) and symbol not in adapter.env.hints:
            before, first, last, by = (_value(n) for n in (x.shape[dim], start, end, step))
            if symbol not in free_symbols(before):
                first = 0 if first is None else _clamped(first, before)
                last = before if last is None or last == sys.maxsize else _clamped(last, before)
                adapter.env.add_fact(Eq(symbol, ceildiv(maximum(last - first, 0), by)))
        return out

    fake_impls.op_implementations_dict[torch.ops.aten.slice.Tensor] = slice_forward


def _clamped(place: IntLike, size: IntLike) -> IntLike:
    """An end of a slice, counted from the front."""
    return maximum(0, minimum(where(Lt(place, 0), place + size, place), size))


def _value(number: Any) -> Any:
    return number.node.value if isinstance(number, torch.SymInt) else number


def _ask_layouts_without_guards() -> None:
    """Let the fake tensor cache, which notes the layout of every tensor, take the general answer for ours: whether strides are
    channels-last differs at sizes of 1 only, and PyTorch's function asks one of its questions without a default."""
    original = torch._prims_common.are_strides_like_channels_last_or_false

    def are_strides_like_channels_last_or_false(shape: Any, strides: Any) -> bool:
        order = _CHANNELS_LAST.get(len(shape))
        env = None if order is None else next((e for n in (*shape, *strides) if (e := env_of(n)) is not None), None)
        if order is None or env is None:
            return original(shape, strides)
        sizes, steps = (
            [n.node.value if isinstance(n, torch.SymInt) else n for n in numbers] for numbers in (shape, strides)
        )
        return env.guard_or_false(strides_ascend(order, sizes, steps))

    torch._prims_common.are_strides_like_channels_last_or_false = are_strides_like_channels_last_or_false


_CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_WRAPPERS = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}


class _KeptNode(_DeconstructedSymNode):
    """What the fake tensor cache stores for a symbolic output: our own node, unchanged."""

    __slots__ = ("node",)

    def __init__(self, node: SymNode) -> None:
        object.__setattr__(self, "node", node)

    def extract(self, shape_env: Any) -> Any:
        return self.node


older_releases.install()
_keep_our_nodes()
_keep_convolution_layouts()
_say_sizes_of_slices()
_ask_layouts_without_guards()


class FakeShapeEnv:
    """The face of a ShapeEnv towards PyTorch's fake tensors; make it with `fake_shape_env`."""

    def __init__(self, env: ShapeEnv, allow_scalar_outputs: bool, allow_dynamic_output_shape_ops: bool) -> None:
        self.env = env
        self.allow_scalar_outputs = allow_scalar_outputs
        self.allow_dynamic_output_shape_ops = allow_dynamic_output_shape_ops
        self.fake_tensor_cache: dict[Any, Any] = {}
        self.pending_fresh_unbacked_symbols: list[Any] = []
        self.real_tensor_prop_unbacked_vals: dict[Any, Any] = {}
        self.unbacked_renamings: dict[Any, Any] = {}
        self.frozen = False
        self._name: str | None = None
        self._nodes: dict[Any, SymNode] = {}
        self._ints: dict[int, SymNode] = {}
        self._sympy: dict[Any, Any] = {}
        self._ours: dict[Any, Any] = {}

    # -- nodes --------------------------------------------------------------------------------------------------------

    def node(self, value: Any) -> SymNode:
        """The one node of an expression or constant, so that equal sizes are recognised by identity."""
        if type(value) is int:
            return self.int_node(value)
        # 1.0 == True as keys
        key = value if isinstance(value, Node) else (type(value), repr(value))
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = SymNode(self, value)
        return node

    def int_node(self, value: int) -> SymNode:
        """The node of a plain int."""
        node = self._ints.get(value)
        if node is None:
            node = self._ints[value] = SymNode(self, value)
        return node

    def wrap(self, value: Any) -> Any:
        """A SymInt/SymFloat/SymBool of an expression, constants as they are."""
        if not isinstance(value, Node):
            return value
        node = self.node(value)
        return _WRAPPERS[node.pytype](node)

    def to_sympy(self, value: Any) -> Any:
        found = self._sympy.get(value) if isinstance(value, Node) else None
        if found is None:
            found = self._make_sympy(value)
            if isinstance(value, Node):
                self._sympy[value] = found
                self._ours[found] = value
        return found

    def _make_sympy(self, value: Any) -> Any:
        import sympy

        if isinstance(value, FloatSymbol):
            return sympy.Symbol(value.name, real=True)
        if isinstance(value, Symbol) or not isinstance(value, Node):
            return to_sympy(value) if isinstance(value, Symbol) else sympy.sympify(value)
        from treadle_shapes.deferred import Deferred

        symbols = frozenset([self.to_sympy(s) for s in value.free_symbols])  # type: ignore[attr-defined]
        number = len(self._ours)

        def make() -> Any:
            if isinstance(value, (FloatExpr, BoolExpr)) or _has_opaque(value):
                return sympy.Function("treadle_opaque", integer=True)(sympy.Integer(number), *symbols)
            return to_sympy(value, {s: self.to_sympy(s) for s in value.free_symbols})  # type: ignore[attr-defined]

        return Deferred(make, symbols)

    def from_sympy(self, expr: Any) -> Any:
        found = self._ours.get(expr)
        if found is None:
            # What was looked into comes back as made from the real form.
            made = {getattr(known, "_made", None) or known: ours for known, ours in self._ours.items()}
            found = from_sympy(expr, made)
        return found

    # -- settings and modes FakeTensorMode reads ----------------------------------------------------------------------

    @property
    def settings(self) -> tuple[bool, bool] | None:
        """Part of the fake tensor cache's key; None is what a mode without ShapeEnv has, whose entries we can share."""
        options = (self.allow_scalar_outputs, self.allow_dynamic_output_shape_ops)
        return options if any(options) else None

    @contextlib.contextmanager
    def suppress_guards(self) -> Iterator[None]:
        with self.env.suppress_guards():
            yield

    @contextlib.contextmanager
    def ignore_fresh_unbacked_symbols(self) -> Iterator[bool]:
        before = list(self.pending_fresh_unbacked_symbols)
        yield True
        self.pending_fresh_unbacked_symbols = before

    @property
    def backed_var_to_val(self) -> dict[Any, Any]:
        return {self.to_sympy(s): value for s, value in self.env.hints.items()}

    var_to_val = backed_var_to_val

    @property
    def var_to_range(self) -> dict[Any, Any]:
        result = {}
        for s in self.env.symbols:
            if isinstance(s, FloatSymbol):
                continue
            result[self.to_sympy(s)] = self.bound_sympy(self.to_sympy(s))
        return result

    # -- unbacked values ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def naming(self, source: str) -> Iterator[None]:
        """Call values read from tensors inside by the user's text, such as `x.item()`, in all messages."""
        before, self._name = self._name, source
        try:
            yield
        finally:
            self._name = before

    def create_unbacked_symint(self, source: Any = None) -> torch.SymInt:
        return self.wrap(self._unbacked("an integer read from a tensor"))

    def create_unbacked_symfloat(self) -> torch.SymFloat:
        s = self.env.create_float(None, self._name or "a float read from a tensor")
        self.pending_fresh_unbacked_symbols.append(self.to_sympy(s))
        return self.wrap(s)

    def create_unbacked_symbool(self) -> torch.SymBool:
        return self.wrap(Ne(self._unbacked("a bool read from a tensor", lower=0, upper=1), 0))

    def _unbacked(self, source: str, lower: int | None = None, upper: int | None = None) -> Symbol:
        s = self.env.create_unbacked(self._name or source, lower=lower, upper=upper)
        self.pending_fresh_unbacked_symbols.append(self.to_sympy(s))
        return s

    def is_unbacked_symint(self, symbol: Any) -> bool:
        return self.from_sympy(symbol) not in self.env.hints

    def _constrain_range_for_size(self, symbol: Any, min: int | None = None, max: int | None = None) -> None:
        self._bound(symbol, 0 if min is None else min, max)

    def _constrain_is_bounded(self, symbol: Any, upper: int) -> None:
        self._bound(symbol, None, upper)

    def constrain_symbol_range(self, symbol: Any, compiler_min: int, compiler_max: int) -> None:
        self._bound(symbol, compiler_min, compiler_max)

    def _bound(self, symbol: Any, lower: Any, upper: Any) -> None:
        value = self.from_sympy(symbol)
        if isinstance(lower, int):
            self.env.add_fact(Ge(value, lower))
        if isinstance(upper, int) and upper < 2**63 - 1:
            self.env.add_fact(Le(value, upper))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def evaluate_sym_node(self, node: SymNode, size_oblivious: bool = False, fallback_value: Any = None) -> Any:
        if fallback_value is None or node.pytype is not bool:
            return node.evaluate()
        return node.guard_or_true() if fallback_value else node.guard_or_false()

    def _maybe_evaluate_static(self, expr: Any, **_options: Any) -> Any:
        import sympy

        value = self.from_sympy(expr)
        if isinstance(value, (bool, BoolExpr)):
            answer = self.env.prove(value)
            return None if answer is None else sympy.true if answer else sympy.false
        simple = self.env.simplify(value)
        return None if isinstance(simple, Node) else sympy.sympify(simple)

    def simplify(self, expr: Any) -> Any:
        value = self.from_sympy(expr)
        return expr if isinstance(value, FloatExpr) else self.to_sympy(self.env.simplify(value))

    def replace(self, expr: Any) -> Any:
        return self.simplify(expr)

    def bound_sympy(self, expr: Any, size_oblivious: bool = False) -> Any:
        from torch.utils._sympy.numbers import int_oo
        from torch.utils._sympy.value_ranges import ValueRanges

        low, high = self.env.bounds(self.from_sympy(expr))
        ends: list[Any] = [-int_oo if low is None else low, int_oo if high is None else high]
        return ValueRanges(*ends)

    def guarding_hint_or_throw(self, expr: Any) -> Any:
        value = self.env.hint(self.from_sympy(expr))
        if value is None:
            raise UsageError(f"{self.env.describe(self.from_sympy(expr))} has no value while tracing")
        return value

    size_hint = guarding_hint_or_throw

    def optimization_hint(self, expr: Any, fallback: int | None = None) -> Any:
        value = self.env.hint(self.from_sympy(expr))
        return fallback if value is None else value

    def guard_or_defer_runtime_assert(self, expr: Any, msg: str, fx_node: Any = None) -> bool:
        return self.env.expect(self.from_sympy(expr), msg)


def _has_opaque(e: Any) -> bool:
    """Whether an integer expression contains a function SymPy has no form for."""
    from treadle_shapes.nodes import Fn, children

    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, FloatExpr) or (isinstance(node, Fn) and node.op in ("bitand", "bitor", "bitxor")):
            return True
        stack += children(node)
    return False


def _sorted(symbols: Any) -> list[Symbol]:
    return sorted(symbols, key=lambda s: s.order)


def _is_ours(shape_env: Any) -> bool:
    return isinstance(shape_env, FakeShapeEnv)


def fake_shape_env(
    env: ShapeEnv, *, allow_scalar_outputs: bool = False, allow_dynamic_output_shape_ops: bool = False
) -> FakeShapeEnv:
    """The object to give to `FakeTensorMode(shape_env=...)`; one per ShapeEnv, options taken from the latest call.

    allow_scalar_outputs: `.item()` gives an unbacked symbol instead of an error; allow_dynamic_output_shape_ops: the same
    for `nonzero`, boolean masks, `unique`, `repeat_interleave`.
    """
    fast_kernels.install(_is_ours)
    adapter = env.adapter
    if adapter is None:
        adapter = env.adapter = FakeShapeEnv(env, allow_scalar_outputs, allow_dynamic_output_shape_ops)
    adapter.allow_scalar_outputs = allow_scalar_outputs
    adapter.allow_dynamic_output_shape_ops = allow_dynamic_output_shape_ops
    return adapter


@contextlib.contextmanager
def symbolic_dispatch() -> Iterator[None]:
    """Use PyTorch's Python kernels of composite operators while tracing: some C++ ones (pad, interpolate) read sizes as
    plain ints, which would make every dynamic size constant."""
    from torch._dispatch.python import enable_python_dispatcher

    with enable_python_dispatcher():
        yield


def sym_int(env: ShapeEnv, expr: IntLike, hint: int | None = None) -> Any:
    """The torch.SymInt of an expression, or the int itself. `hint` is checked against the environment's own."""
    if not isinstance(expr, Expr):
        return expr
    known = env.hint(expr)
    if hint is not None and known is not None and hint != known:
        raise UsageError(f"sym_int: {expr} is {known} at the hints of its symbols, not {hint}")
    return _adapter(env).wrap(expr)


def sym_float(env: ShapeEnv, expr: FloatLike) -> Any:
    """The torch.SymFloat of a float expression, or the float itself."""
    return _adapter(env).wrap(expr)


def _adapter(env: ShapeEnv) -> FakeShapeEnv:
    return fake_shape_env(env) if env.adapter is None else env.adapter


def expr_of(value: Any) -> Any:
    """The expression under a SymInt, SymFloat or SymBool, with all that its ShapeEnv knows put in; numbers as they are."""
    node = getattr(value, "node", None)
    if node is None:
        if isinstance(value, (int, float)):
            return value
        raise UsageError(f"expr_of: expected a number or symbolic number, got {type(value).__name__}")
    if not isinstance(node, SymNode):
        known = node.maybe_as_int()
        if known is None:
            raise UsageError(f"expr_of: {value} belongs to another symbolic shape engine")
        return known
    return node.value if isinstance(node.value, FloatExpr) else node.env.simplify(node.value)


def raw_expr(value: Any) -> Any:
    """The expression under a SymInt, SymFloat or SymBool as it was made, no facts put in; anything else as it is.

    Facts would turn the condition of an assert into True. Raises UsageError for a number of another shape engine.
    """
    if not isinstance(value, _SYMBOLIC):
        return value
    node: Any = value.node
    if not isinstance(node, SymNode):
        raise UsageError(f"raw_expr: {value} belongs to another symbolic shape engine")
    return node.value


def env_of(value: Any) -> ShapeEnv | None:
    """The ShapeEnv a symbolic number belongs to, None for plain numbers."""
    node = getattr(value, "node", None)
    return node.env if isinstance(node, SymNode) else None


def symbolic_strides(env: ShapeEnv, real: torch.Tensor, sizes: Sequence[IntLike], source: str = "") -> list[IntLike]:
    """Strides as expressions of `sizes`, wherever the real stride is the extent covered by the dims inside it.

    A stride that is not (a slice of a larger tensor) stays a constant while the dims inside it are constant, and becomes
    a symbol of its own otherwise.
    """
    shape, strides = real.shape, real.stride()
    result: list[IntLike] = list(strides)
    reach: list[tuple[int, IntLike]] = [(1, 1)]
    inner_dynamic = False
    for d in sorted(range(len(shape)), key=lambda d: (strides[d], shape[d] != 1, -d)):
        match = next((e for value, e in reversed(reach) if value == strides[d]), None)
        if strides[d] == 0 or (match is None and not inner_dynamic):
            continue
        if match is None:
            result[d] = env.create_symbol(strides[d], f"{source or 'tensor'}.stride()[{d}]")
        else:
            result[d] = match
        inner_dynamic = inner_dynamic or isinstance(sizes[d], Expr)
        reach.append((max(shape[d], 1) * strides[d], sizes[d] * result[d]))
    return result


def fake_tensor(mode: Any, real: torch.Tensor, sizes: Sequence[IntLike | None], source: str = "") -> torch.Tensor:
    """A fake tensor like `real` with the given sizes (None: the real size) and the strides that go with them.

    mode: a FakeTensorMode whose shape_env comes from `fake_shape_env`. sizes: one per dim, expressions of its ShapeEnv or
    ints. source: text for the messages about strides. dtype, device and requires_grad are those of `real`.
    """
    adapter = mode.shape_env
    if not isinstance(adapter, FakeShapeEnv):
        raise UsageError("fake_tensor: mode must be made with FakeTensorMode(shape_env=fake_shape_env(env))")
    if len(sizes) != real.dim():
        raise UsageError(f"fake_tensor: {len(sizes)} sizes given for a tensor of {real.dim()} dims")
    exprs = [n if size is None else size for n, size in zip(real.shape, sizes, strict=True)]
    strides = symbolic_strides(adapter.env, real, exprs, source)
    with mode:
        return torch.empty_strided(
            [adapter.wrap(e) for e in exprs],
            [adapter.wrap(e) for e in strides],
            dtype=real.dtype,
            device=real.device,
            requires_grad=real.requires_grad and (real.is_floating_point() or real.is_complex()),
        )
