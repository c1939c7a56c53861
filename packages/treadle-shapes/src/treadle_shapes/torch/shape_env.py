"""Adapts a ShapeEnv of this package to torch.SymInt, SymFloat and SymBool, FakeTensorMode and meta kernels.

    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    batch = env.create_symbol(x.shape[0], "L['x'].size()[0]")
    fake = fake_tensor(mode, x, (batch, None))          # None: that size stays a constant

`FakeShapeEnv` has the methods and attributes that PyTorch's Python side uses of a `ShapeEnv` (torch 2.11 - 2.13:
`torch/_subclasses/fake_tensor.py`, `fake_impls.py`, `meta_utils.py`, and the free functions on SymInts that they call).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from treadle_shapes.env import ShapeEnv
from treadle_shapes.errors import UsageError
from treadle_shapes.floats import FloatExpr, FloatLike, FloatSymbol
from treadle_shapes.interop_sympy import from_sympy, to_sympy
from treadle_shapes.logic import Ge, Le, Ne
from treadle_shapes.nodes import BoolExpr, Expr, IntLike, Node, Symbol
from treadle_shapes.sym_node import SymNode
from treadle_shapes.torch import patches
from treadle_shapes.torch.ours import TreadleShapeEnv

_WRAPPERS = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}


class FakeShapeEnv(TreadleShapeEnv):
    """The adapter of a ShapeEnv for PyTorch's fake tensors. Make it with `fake_shape_env`."""

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
        """Return the node of an expression or constant. Each has one node, so that equal sizes are identical."""
        if type(value) is int:
            return self.int_node(value)
        # 1.0 and True are equal as dict keys
        key = value if isinstance(value, Node) else (type(value), repr(value))
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = SymNode(self, value)
        return node

    def int_node(self, value: int) -> SymNode:
        """Return the node of a plain int."""
        node = self._ints.get(value)
        if node is None:
            node = self._ints[value] = SymNode(self, value)
        return node

    def wrap(self, value: Any) -> Any:
        """Return the SymInt, SymFloat or SymBool of an expression. Constants stay as they are."""
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
            # SymPy builds new forms from the real form of a `Deferred` whose structure was read.
            made = {getattr(known, "_made", None) or known: ours for known, ours in self._ours.items()}
            found = from_sympy(expr, made)
        return found

    # -- settings and modes FakeTensorMode reads ----------------------------------------------------------------------

    @property
    def settings(self) -> tuple[bool, bool] | None:
        """Part of the fake tensor cache's key. Without options it is None, as for a mode without ShapeEnv, so that entries are shared."""
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
        """Inside, messages name values that are read from tensors by the user's text `source`, such as `x.item()`."""
        before, self._name = self._name, source
        try:
            yield
        finally:
            self._name = before

    def create_unbacked_symint(self, source: Any = None) -> torch.SymInt:
        return self.wrap(self._unbacked("an integer read from a tensor"))

    def create_unbacked_size(self, most: IntLike | None = None) -> torch.SymInt:
        """Return a size that only the run of the graph can tell. It is at most the upper bound of `most`."""
        upper = None if most is None else self.env.bounds(most)[1]
        return self.wrap(
            self._unbacked("a size that data tells", lower=0, upper=upper if isinstance(upper, int) else None)
        )

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
    """Whether an integer expression contains a function without a SymPy form."""
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


def fake_shape_env(
    env: ShapeEnv, *, allow_scalar_outputs: bool = False, allow_dynamic_output_shape_ops: bool = False
) -> FakeShapeEnv:
    """Return the adapter for `fake_mode(shape_env=...)`. Each ShapeEnv has one; the latest call sets its options.

    allow_scalar_outputs: `.item()` gives an unbacked symbol instead of an error; allow_dynamic_output_shape_ops: the same
    for `nonzero`, boolean masks, `unique`, `repeat_interleave`.
    """
    patches.install()
    adapter = env.adapter
    if adapter is None:
        adapter = env.adapter = FakeShapeEnv(env, allow_scalar_outputs, allow_dynamic_output_shape_ops)
    adapter.allow_scalar_outputs = allow_scalar_outputs
    adapter.allow_dynamic_output_shape_ops = allow_dynamic_output_shape_ops
    return adapter


@contextlib.contextmanager
def symbolic_dispatch() -> Iterator[None]:
    """Run PyTorch's Python kernels of composite operators while tracing. Some C++ kernels (pad, interpolate) read sizes as
    plain ints, which would fix every dynamic size."""
    from torch._dispatch.python import enable_python_dispatcher

    with enable_python_dispatcher():
        yield


@contextlib.contextmanager
def refusing_plain_numbers(env: ShapeEnv) -> Iterator[None]:
    """Let kernels that read symbolic sizes as plain numbers, and so would fix them, raise a RuntimeError."""
    before, env.refuses_plain_numbers = env.refuses_plain_numbers, True
    try:
        yield
    finally:
        env.refuses_plain_numbers = before


def sym_int(env: ShapeEnv, expr: IntLike, hint: int | None = None) -> Any:
    """Return the torch.SymInt of an expression, or the int itself. Raises UsageError when `hint` contradicts the expression's hint."""
    if not isinstance(expr, Expr):
        return expr
    known = env.hint(expr)
    if hint is not None and known is not None and hint != known:
        raise UsageError(f"sym_int: {expr} is {known} at the hints of its symbols, not {hint}")
    return _adapter(env).wrap(expr)


def sym_float(env: ShapeEnv, expr: FloatLike) -> Any:
    """Return the torch.SymFloat of a float expression, or the float itself."""
    return _adapter(env).wrap(expr)


def _adapter(env: ShapeEnv) -> FakeShapeEnv:
    return fake_shape_env(env) if env.adapter is None else env.adapter


def expr_of(value: Any) -> Any:
    """Return the expression under a SymInt, SymFloat or SymBool, simplified by its ShapeEnv's facts. Numbers stay as they are."""
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


def symbolic_strides(env: ShapeEnv, real: torch.Tensor, sizes: Sequence[IntLike], source: str = "") -> list[IntLike]:
    """Express the strides of `real` by `sizes`, where a stride equals the extent of the dims inside it.

    Any other stride (of a slice of a larger tensor) stays constant while the dims inside it are constant, and becomes a symbol
    otherwise.
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
    """Return a fake tensor like `real` with the given sizes (None: the real size) and strides that match them.

    mode: a FakeTensorMode whose shape_env comes from `fake_shape_env`. sizes: one per dim, expressions of its ShapeEnv or
    ints. source: the tensor's name in messages about strides. dtype, device and requires_grad are those of `real`.
    """
    adapter = mode.shape_env
    if not isinstance(adapter, FakeShapeEnv):
        raise UsageError("fake_tensor: mode must be made with fake_mode(shape_env=fake_shape_env(env))")
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
