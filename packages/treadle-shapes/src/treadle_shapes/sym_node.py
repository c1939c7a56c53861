"""`SymNode`, the node under a torch.SymInt, SymFloat or SymBool. PyTorch calls its methods by name, from C++ and from Python.

This module needs no torch. The protocol (method names, argument kinds, who calls what) is that of torch 2.11 - 2.13:
`torch/csrc/utils/python_symnode.h` for the C++ side, `torch/fx/experimental/sym_node.py` for the operators of SymInt.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from typing import Any

from treadle_shapes import floats, rewrite, rules
from treadle_shapes.env import ShapeEnv
from treadle_shapes.errors import SizeOverflowError, UsageError
from treadle_shapes.floats import FloatExpr, float_fn
from treadle_shapes.logic import And, Eq, Ge, Gt, Le, Lt, Ne, Not, Or
from treadle_shapes.nodes import BoolExpr, BoolLike, Expr, IntLike, Node

#: name that PyTorch calls -> operation on two integers; the environment checks divisors
INT_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mod": operator.mod,
    "floordiv": operator.floordiv,
    "int_floordiv": operator.floordiv,
    "pow": rules.power,
    "pow_by_natural": rules.power,
    "truediv": lambda a, b: float_fn("truediv", a, b),
    "int_truediv": lambda a, b: float_fn("truediv", a, b),
    "lshift": rules.shift_left,
    "rshift": rules.shift_right,
    "bitwise_and": rewrite.bit_and,
    "bitwise_or": rewrite.bit_or,
    "bitwise_xor": rewrite.bit_xor,
    "and_": rewrite.bit_and,
    "or_": rewrite.bit_or,
    "sym_min": rules.minimum,
    "sym_max": rules.maximum,
    "eq": Eq,
    "ne": Ne,
    "lt": Lt,
    "le": Le,
    "gt": Gt,
    "ge": Ge,
}
FLOAT_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: float_fn("fadd", a, b),
    "sub": lambda a, b: float_fn("fsub", a, b),
    "mul": lambda a, b: float_fn("fmul", a, b),
    "mod": lambda a, b: float_fn("fmod", a, b),
    "truediv": lambda a, b: float_fn("fdiv", a, b),
    "float_truediv": lambda a, b: float_fn("fdiv", a, b),
    "floordiv": floats.floor_divide,
    "int_floordiv": floats.floor_divide,
    "pow": lambda a, b: float_fn("fpow", a, b),
    "float_pow": lambda a, b: float_fn("fpow", a, b),
    "sym_min": lambda a, b: float_fn("fmin", a, b),
    "sym_max": lambda a, b: float_fn("fmax", a, b),
    "eq": lambda a, b: floats.compare("eq", a, b),
    "ne": lambda a, b: floats.compare("ne", a, b),
    "lt": lambda a, b: floats.compare("lt", a, b),
    "ge": lambda a, b: floats.compare("ge", a, b),
    "gt": lambda a, b: floats.compare("lt", b, a),
    "le": lambda a, b: floats.compare("ge", b, a),
}
BOOL_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "and_": And,
    "sym_and": And,
    "or_": Or,
    "sym_or": Or,
    "bitwise_and": And,
    "bitwise_or": Or,
    "eq": lambda a, b: Or(And(a, b), And(Not(a), Not(b))),
    "ne": lambda a, b: Or(And(a, Not(b)), And(Not(a), b)),
}
_DIVISIONS = ("mod", "floordiv", "int_floordiv", "truediv", "int_truediv")
_QUOTIENTS = ("truediv", "int_truediv", "float_truediv")

INT_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda a: -a,
    "pos": lambda a: a,
    "abs": floats.absolute,
    "floor": lambda a: a,
    "ceil": lambda a: a,
    "trunc": lambda a: a,
    "sym_int": lambda a: a,
    "sym_float": floats.to_float,
    "is_integer": lambda a: True,
}
FLOAT_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda a: float_fn("fneg", a),
    "pos": lambda a: a,
    "abs": lambda a: float_fn("fabs", a),
    "floor": lambda a: floats.round_to_int("floor", a),
    "ceil": lambda a: floats.round_to_int("ceil", a),
    "trunc": lambda a: floats.round_to_int("trunc", a),
    "sym_int": lambda a: floats.round_to_int("trunc", a),
    "sym_float": lambda a: a,
    "is_integer": floats.is_integer,
}
BOOL_UNARY: dict[str, Callable[[Any], Any]] = {"sym_not": Not}
#: float functions; torch._sym_sqrt calls `_sym_sqrt`, and so on
_MATH = [name.removeprefix("math_") for name in floats.FLOAT_OPS if name.startswith("math_")]

_BINARY = {int: INT_BINARY, float: FLOAT_BINARY, bool: BOOL_BINARY}
_UNARY = {int: INT_UNARY, float: FLOAT_UNARY, bool: BOOL_UNARY}


def type_of(value: Any) -> type:
    """Return the type that a value or expression computes: int, float or bool."""
    if isinstance(value, (bool, BoolExpr)):
        return bool
    return int if isinstance(value, (int, Expr)) else float


class SymNode:
    """One symbolic value. `value` is an expression or constant of this package; `env` answers decisions about it."""

    __slots__ = ("__weakref__", "_as_int", "_guess", "_results", "adapter", "pytype", "value")

    #: PyTorch's Python side reads it
    fx_node = None

    def __init__(self, adapter: Any, value: Any, pytype: type | None = None) -> None:
        self.adapter = adapter
        self.value = value
        self.pytype = type_of(value) if pytype is None else pytype
        self._guess: Any = ...
        self._as_int = value if self.pytype is int and isinstance(value, int) else None
        # (operation, other node) -> result node. C++ repeats the same few operations on the sizes of every tensor.
        self._results: dict[Any, SymNode] = {}

    # -- identity -----------------------------------------------------------------------------------------------------

    @property
    def env(self) -> ShapeEnv:
        return self.adapter.env

    @property
    def shape_env(self) -> Any:
        return self.adapter

    @property
    def expr(self) -> Any:
        return self.adapter.to_sympy(self.value)

    _expr = expr

    @property
    def constant(self) -> Any:
        return None if isinstance(self.value, Node) else self.value

    @property
    def hint(self) -> Any:
        if self._guess is ...:
            self._guess = self.env.hint(self.value)
        return self._guess

    _hint = hint

    def has_hint(self) -> bool:
        """Always False, so that PyTorch's meta functions take their formulas for unbacked values, which decide nothing.

        Where a meta function decides all the same, `guard_bool` uses the hint.
        """
        return self.is_constant()

    def _value_eq(self, other: SymNode) -> bool:
        return self is other or (self.value is other.value and self.adapter is other.adapter)

    def _value_hash(self) -> int:
        return hash(self.value)

    def extract(self, _shape_env: Any) -> SymNode:
        """Return the node itself. FakeTensorMode's cache rebuilds PyTorch's nodes without their environment; ours stay unchanged."""
        return self

    def with_shape_env(self, adapter: Any) -> SymNode:
        return adapter.node(self.value)

    def clone(self) -> SymNode:
        return self

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return not isinstance(self.value, Node)

    def maybe_as_int(self) -> int | None:
        return self._as_int

    def maybe_as_float(self) -> float | None:
        return self.value if isinstance(self.value, float) else None

    def maybe_as_bool(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    def str(self) -> builtins.str:
        return f"{self.value}"

    def __repr__(self) -> builtins.str:
        return f"{self.value}"

    _graph_repr = __repr__

    # -- building -----------------------------------------------------------------------------------------------------

    def _wrap(self, value: Any) -> SymNode:
        return self.adapter.node(value)

    wrap_float = wrap_bool = _wrap

    def wrap_int(self, value: int) -> SymNode:
        return self.adapter.int_node(value)

    def round(self, ndigits: int | None = None) -> SymNode:
        if self.pytype is int:
            return self
        rounded = (
            floats.round_to_int("round", self.value) if ndigits is None else float_fn("fround", self.value, ndigits)
        )
        return self._wrap(rounded)

    def sym_ite(self, then: SymNode, other: SymNode) -> SymNode:
        if self.is_constant():
            return then if self.value else other
        if then.pytype is bool:
            return self._wrap(Or(And(self.value, then.value), And(Not(self.value), other.value)))
        if then.pytype is float:
            return self._wrap(float_fn("fwhere", self.value, then.value, other.value))
        return self._wrap(rules.where(self.value, then.value, other.value))

    def sym_sum(self, args: Sequence[SymNode]) -> SymNode:
        total: Any = 0
        for arg in args:
            total = total + arg.value
        return self._wrap(total)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def guard_int(self, file: str = "", line: int = 0) -> int:
        if self.env.refuses_plain_numbers and not isinstance(self.env.simplify(self.value), int):
            raise RuntimeError("a kernel reads symbolic sizes as plain numbers")
        return self.env.specialize(self.value)

    int_ = guard_int

    def guard_float(self, file: str = "", line: int = 0) -> float:
        value = self.value
        if not isinstance(value, FloatExpr):
            return float(value if not isinstance(value, Expr) else self.env.specialize(value))
        if floats.has_float_symbol(value):
            return self.env.specialize_float(value)
        # Fixing the integers in a float expression fixes the float.
        fixed = {s: self.env.specialize(s) for s in sorted(value.free_symbols, key=lambda s: s.order)}
        return float(rewrite.evaluate(value, fixed))  # type: ignore[call-overload]

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        # The truth value of a float is value != 0.0, so nan is true.
        return self.env.decide(floats.compare("ne", self.value, 0.0) if self.pytype is float else self.value)

    bool_ = guard_bool

    def guard_or_false(self, file: str = "", line: int = 0) -> bool:
        return self.env.guard_or_false(self.value)

    guard_size_oblivious = guard_or_false

    def guard_or_true(self, file: str = "", line: int = 0) -> bool:
        return self.env.guard_or_true(self.value)

    def statically_known_true(self, file: str = "", line: int = 0) -> bool:
        return self.env.prove(self.value) is True

    def expect_true(self, file: str = "", line: int = 0) -> bool:
        return self.env.expect(self.value)

    def evaluate(self, size_oblivious: bool = False) -> Any:
        return {int: self.guard_int, float: self.guard_float, bool: self.guard_bool}[self.pytype]()

    # -- layouts ------------------------------------------------------------------------------------------------------

    def is_contiguous(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout(range(len(sizes) - 1, -1, -1), sizes, strides)

    def is_channels_last_contiguous_2d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout((1, 3, 2, 0), sizes, strides)

    def is_channels_last_contiguous_3d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._layout((1, 4, 3, 2, 0), sizes, strides)

    def is_channels_last_strides_2d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._ascending((1, 3, 2, 0), sizes, strides)

    def is_channels_last_strides_3d(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._ascending((1, 4, 3, 2, 0), sizes, strides)

    def _layout(self, order: Sequence[int], sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        if len(order) != len(sizes):
            return self._wrap(False)
        return self._layout_answer(dense_in_order(order, [s.value for s in sizes], [s.value for s in strides]))

    def _ascending(self, order: Sequence[int], sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        if len(order) != len(sizes):
            return self._wrap(False)
        return self._layout_answer(strides_ascend(order, [s.value for s in sizes], [s.value for s in strides]))

    def _layout_answer(self, condition: BoolLike) -> SymNode:
        return LayoutNode(self.adapter, condition) if isinstance(condition, BoolExpr) else self._wrap(condition)

    def is_non_overlapping_and_dense(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._wrap(non_overlapping_and_dense(self.env, [s.value for s in sizes], [s.value for s in strides]))

    def is_non_overlapping_and_dense_indicator(self, sizes: Sequence[SymNode], strides: Sequence[SymNode]) -> SymNode:
        return self._wrap(
            int(non_overlapping_and_dense(self.env, [s.value for s in sizes], [s.value for s in strides]))
        )


class LayoutNode(SymNode):
    """The answer to a question about a layout. It is False unless facts or hints make it True.

    False is a safe answer: for sizes of 1 strides may be contiguous that are not so in general, and the general code path then computes the
    same values (`contiguous()` may copy where eager returns the tensor itself).
    """

    __slots__ = ()

    def guard_bool(self, file: builtins.str = "", line: int = 0) -> bool:
        return self.env.guard_or_false(self.value)

    bool_ = guard_bool


def dense_in_order(order: Sequence[int], sizes: Sequence[IntLike], strides: Sequence[IntLike]) -> BoolLike:
    """Whether the layout is dense with dim `order[0]` innermost. Dims of size 1 may have any stride."""
    if any(isinstance(size, int) and size == 0 for size in sizes):
        return True
    expected: IntLike = 1
    conditions: list[BoolLike] = []
    for d in order:
        if not (isinstance(sizes[d], int) and sizes[d] == 1):
            conditions.append(Or(Eq(strides[d], expected), Eq(sizes[d], 1)))
            expected = expected * sizes[d]
    return And(*conditions)


def strides_ascend(order: Sequence[int], sizes: Sequence[IntLike], strides: Sequence[IntLike]) -> BoolLike:
    """Whether strides grow in this order without overlap: the loose test of channels-last (c10 `is_channels_last_strides_*`)."""
    conditions: list[BoolLike] = [Ne(strides[order[0]], 0)]
    least: IntLike = 0
    for d in order:
        conditions += [Ne(sizes[d], 0), Le(least, strides[d])]
        if d == 0:
            # Sizes N,1,1,..,1 with equal strides of C and N are ambiguous. They count as contiguous, not as channels-last.
            conditions.append(Ne(least, strides[order[0]]))
        least = strides[d] * sizes[d]
    return And(*conditions)


def non_overlapping_and_dense(env: ShapeEnv, sizes: Sequence[IntLike], strides: Sequence[IntLike]) -> bool:
    """Whether the layout is dense in some order of the dims. The order depends on the hints, so the question is decided here."""
    if env.guard_or_false(dense_in_order(range(len(sizes) - 1, -1, -1), sizes, strides)):
        return True
    hints = [env.hint(stride) for stride in strides]
    if any(hint is None for hint in hints):
        return False
    order = sorted(range(len(sizes)), key=lambda d: (env.hint(sizes[d]) == 1, hints[d]))
    return env.guard_or_false(dense_in_order(order, sizes, strides))


def _binary_method(name: str) -> Callable[[SymNode, SymNode], SymNode]:
    def method(self: SymNode, other: SymNode) -> SymNode:
        key = name, other, gives_quotient and self.env.divides_like_c
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = compute(self, other)
        return found

    on_integers = INT_BINARY.get(name)
    divides = name in _DIVISIONS
    gives_quotient = name in _QUOTIENTS

    def compute(self: SymNode, other: SymNode) -> SymNode:
        a, b = self.value, other.value
        if gives_quotient and self.env.divides_like_c and bool not in (self.pytype, other.pytype):
            if self.env.prove(_is_zero(b)) is not False:
                return self._wrap(floats.quotient_of_c(_as_float(a), _as_float(b)))
        if on_integers is not None and self.pytype is int and other.pytype is int:
            if divides and not (isinstance(b, int) and b):
                _check_divisor(self.env, b)
            return self.adapter.node(_checked(on_integers(a, b)))
        if self.pytype is not other.pytype and bool in (self.pytype, other.pytype):
            return getattr(_as_number(self), _ON_NUMBERS.get(name, name))(_as_number(other))
        pytype = float if float in (self.pytype, other.pytype) else self.pytype
        if pytype is float:
            a, b = _as_float(a), _as_float(b)
        operation = _BINARY[pytype].get(name)
        if operation is None:
            raise UsageError(f"{name}: not defined on {pytype.__name__} values such as {a}")
        result = operation(a, b)
        if isinstance(result, FloatExpr) and result.op in floats.PARTIAL:
            self.env.check_float(result)
        return self._wrap(result)

    method.__name__ = name
    return method


def _check_divisor(env: ShapeEnv, divisor: IntLike) -> None:
    """Guard that a divisor is not zero, unless it is an unbacked size.

    PyTorch's meta functions divide by unbacked sizes after asking whether they are zero, and do not use the quotient where they are.
    """
    if env.is_unbacked(divisor):
        lower = env.bounds(divisor).lower
        if isinstance(lower, int) and lower >= 0:
            return
    env.check_divisor(divisor)


def _is_zero(number: Any) -> BoolLike:
    return Eq(number, 0) if isinstance(number, (int, Expr)) else floats.compare("eq", number, 0.0)


def _as_number(node: SymNode) -> SymNode:
    """Return a bool as Python counts it beside numbers: 0 or 1."""
    value: Any = node.value
    if node.pytype is not bool:
        return node
    return node.adapter.node(int(value) if isinstance(value, bool) else rules.where(value, 1, 0))


_ON_NUMBERS = {"and_": "bitwise_and", "sym_and": "bitwise_and", "or_": "bitwise_or", "sym_or": "bitwise_or"}
"""The operation on numbers that an operator of Python has another name for on bools."""


def _as_float(value: Any) -> Any:
    return floats.to_float(value) if isinstance(value, Expr) else float(value) if isinstance(value, int) else value


def _checked(value: Any) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise SizeOverflowError(f"{value} does not fit in the 64 bits of a size")
    return value


def _unary_method(name: str) -> Callable[[SymNode], SymNode]:
    def method(self: SymNode) -> SymNode:
        operation = _UNARY[self.pytype].get(name)
        if operation is None:
            raise UsageError(f"{name}: not defined on {self.pytype.__name__} values such as {self.value}")
        return self._wrap(operation(self.value))

    method.__name__ = name
    return method


def _math_method(name: str) -> Callable[[SymNode], SymNode]:
    def method(self: SymNode) -> SymNode:
        result = float_fn(f"math_{name}", _as_float(self.value))
        self.env.check_float(result)
        return self._wrap(result)

    method.__name__ = f"sym_{name}"
    return method


for _name in {*INT_BINARY, *FLOAT_BINARY, *BOOL_BINARY}:
    setattr(SymNode, _name, _binary_method(_name))
for _name in {*INT_UNARY, *FLOAT_UNARY, *BOOL_UNARY}:
    setattr(SymNode, _name, _unary_method(_name))
for _name in _MATH:
    setattr(SymNode, f"sym_{_name}", _math_method(_name))
    setattr(SymNode, f"_sym_{_name}", _math_method(_name))
