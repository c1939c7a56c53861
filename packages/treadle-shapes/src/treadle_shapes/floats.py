"""Float expressions over float symbols and over integer expressions (scale factors and divisions of sizes).

A float expression is a tree. Constants fold to Python floats. Nothing is reordered, because float arithmetic is not
associative. Rounding gives an integer expression. It is simplified where float arithmetic is exact for integers below 2**53,
as tensor sizes are: `floor(a / b)` is `a // b`, `floor(a * 0.5)` is `a // 2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Union

from treadle_shapes import rules
from treadle_shapes.bounds import OWN
from treadle_shapes.errors import UsageError
from treadle_shapes.intern import InternTable, Node
from treadle_shapes.logic import And
from treadle_shapes.nodes import CONSTRUCT, BoolLike, Expr, IntLike, Symbol, find_free, make_bool, make_fn
from treadle_shapes.ranges import Range
from treadle_shapes.rewrite import EVALUATE, evaluate

FloatLike: TypeAlias = Union[float, "FloatExpr"]

# Products of sizes with a factor p / 2**k are exact for p and k up to these limits.
_MAX_NUMERATOR = 1 << 20
_MAX_SHIFT = 20


class FloatExpr(Node):
    """A float that is not a constant: `op` of `args` (FloatExprs, floats; for `float` and `truediv` IntLikes)."""

    __slots__ = ("args", "op")
    op: str
    args: tuple

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return find_free(self) if self._free is None else self._free

    def __bool__(self) -> bool:
        raise UsageError(f"the truth of {self} is not known")

    def __repr__(self) -> str:
        return CONSTRUCT["text"](self)

    def __reduce__(self) -> tuple:
        return float_fn, (self.op, *self.args)


class FloatSymbol(FloatExpr):
    """A named float unknown: any double, infinities and nan included."""

    __slots__ = ("name",)
    name: str
    lower = upper = None
    range = Range(None, None)

    def __reduce__(self) -> tuple:
        return float_symbol, (self.name,)


_floats: InternTable[FloatExpr] = InternTable()


def float_symbol(name: str) -> FloatSymbol:
    """The float symbol of that name."""
    key = ("symbol", name)
    node = _floats.get(key)
    if node is None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"float_symbol: name must be a non-empty string, got {name!r}")
        node = object.__new__(FloatSymbol)
        node._free = node._own = None
        node.order, node.op, node.args, node.name = (6, "symbol", name), "symbol", (), name
        node._free = frozenset((node,))
        node = _floats.add(key, node)
    assert isinstance(node, FloatSymbol)
    return node


def has_float_symbol(e: Any) -> bool:
    """Whether a value depends on a float symbol, so that it may be any double."""
    return isinstance(e, Node) and any(isinstance(s, FloatSymbol) for s in e.free_symbols)  # type: ignore[attr-defined]


#: float operation -> its function on Python numbers
FLOAT_OPS: dict[str, Callable[..., Any]] = {
    "float": float,
    "truediv": lambda a, b: a / b,
    "fadd": lambda a, b: a + b,
    "fsub": lambda a, b: a - b,
    "fmul": lambda a, b: a * b,
    "fdiv": lambda a, b: a / b,
    "fpow": lambda a, b: a**b,
    "fmod": lambda a, b: a % b,
    "ffloordiv": lambda a, b: a // b,
    "fcopysign": math.copysign,
    "fneg": lambda a: -a,
    "fabs": abs,
    "fmin": min,
    "fmax": max,
    "fwhere": lambda c, a, b: a if c else b,
    "fround": round,
    **{f"math_{name}": getattr(math, name) for name in
       ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log", "log2",
        "log10", "log1p", "expm1", "exp2", "cbrt", "asinh", "acosh", "atanh", "erf", "erfc", "gamma", "lgamma",
        "degrees", "radians", "fabs") if hasattr(math, name)},
    **{f"math_{name}": getattr(math, name) for name in ("pow", "atan2", "hypot", "fmod")},
}  # fmt: skip

#: operations that may raise (division by zero, domain error, overflow) or return a complex number
PARTIAL = frozenset(
    {"truediv", "fdiv", "fpow", "fmod", "ffloordiv", "fround", *(op for op in FLOAT_OPS if op[:5] == "math_")}
)

_ROUND: dict[str, Callable[[float], int]] = {"floor": math.floor, "ceil": math.ceil, "trunc": int, "round": round}

EVALUATE.update(FLOAT_OPS)
EVALUATE.update(_ROUND)
EVALUATE.update({
    "float_lt": lambda a, b: a < b,
    "float_ge": lambda a, b: a >= b,
    "float_eq": lambda a, b: a == b,
    "float_ne": lambda a, b: a != b,
    "defined": lambda x: isinstance(x, float),
})  # fmt: skip


def float_fn(op: str, *args: Any) -> FloatLike:
    """Apply the float operation `op` of FLOAT_OPS. Folds when all arguments are constants."""
    if not any(isinstance(arg, Node) for arg in args):
        return FLOAT_OPS[op](*args)
    # 0.0 and -0.0, and 1 and 1.0, are equal as dict keys but different operands.
    key = (op, *[_constant_key(arg) if isinstance(arg, (int, float)) else arg for arg in args])
    node = _floats.get(key)
    if node is None:
        node = object.__new__(FloatExpr)
        node._free = node._own = None
        node.order = (6, op, len(args), tuple(a.order if isinstance(a, Node) else (0, float(a), repr(a)) for a in args))
        node.op, node.args = op, args
        node = _floats.add(key, node)
    return node


def _constant_key(value: float) -> tuple:
    # Nans of different sign are different operands of copysign.
    return type(value), repr(value), math.copysign(1.0, value) if value != value else 0.0


def to_float(e: IntLike) -> FloatLike:
    """float(e)"""
    return float_fn("float", e)


def compare(op: str, a: FloatLike, b: FloatLike) -> BoolLike:
    """Return the condition a `op` b for op in lt, ge, eq, ne."""
    name = f"float_{op}"
    if not isinstance(a, FloatExpr) and not isinstance(b, FloatExpr):
        return EVALUATE[name](a, b)
    whole = _compare_size(op, a, b)
    return make_bool(name, (a, b)) if whole is None else whole


def defined(x: FloatLike) -> BoolLike:
    """The condition that Python computes a float here, not a complex number. Evaluating it raises where computing `x` raises."""
    return make_bool("defined", (x,)) if isinstance(x, FloatExpr) else isinstance(x, float)


def same(x: FloatLike, value: float) -> BoolLike:
    """Whether x is that very double: nan is itself, 0.0 is not -0.0.

    x is nan == (x != x);  x is 0.0 == (x == 0.0 and copysign(1.0, x) == 1.0)
    """
    if not isinstance(x, FloatExpr):
        return x.hex() == value.hex()
    if math.isnan(value):
        return compare("ne", x, x)
    if value == 0.0:
        return And(compare("eq", x, value), compare("eq", float_fn("fcopysign", 1.0, x), math.copysign(1.0, value)))
    return compare("eq", x, value)


def holds(condition: BoolLike, values: Mapping[Any, Any]) -> bool:
    """Whether a guard holds for these values. A guard that cannot be computed for them (see `defined`) does not hold, nor does one that
    compares what is a complex number there: the square root of a negative number."""
    try:
        return bool(evaluate(condition, values))
    except (ArithmeticError, ValueError, TypeError):
        return False


def floor_divide(a: FloatLike, b: FloatLike) -> FloatLike:
    """Python's a // b for floats, which is not floor(a / b); for sizes:  float(e) // n == float(e // n)"""
    ratio = None if has_float_symbol(a) or has_float_symbol(b) else _as_ratio(float_fn("fdiv", a, b))
    return float_fn("ffloordiv", a, b) if ratio is None else to_float(rules.floordiv(*ratio))


def quotient_of_c(a: FloatLike, b: FloatLike) -> FloatLike:
    """a / b as C++ divides, infinity or nan by zero, where Python raises.

    a / b    ->    a * copysign(inf, b) if b == 0.0 else a / (1.0 if b == 0.0 else b)
    """
    is_zero = compare("eq", b, 0.0)
    if is_zero is False:
        return float_fn("fdiv", a, b)
    beyond = float_fn("fmul", a, float_fn("fcopysign", math.inf, b))
    return beyond if is_zero is True else _choice(is_zero, beyond, float_fn("fdiv", a, _choice(is_zero, 1.0, b)))


def _choice(condition: BoolLike, a: FloatLike, b: FloatLike) -> FloatLike:
    return float_fn("fwhere", condition, a, b)


def _compare_size(op: str, a: FloatLike, b: FloatLike) -> BoolLike | None:
    """float(e) < c == e < ceil(c);  c < float(e) == floor(c) < e;  float(e) == c == (e == c), false for a fractional c

    float(e) - c < 0 == float(e) < c: floats that differ have a difference other than 0.
    """
    size, number, left = (a, b, True) if isinstance(a, FloatExpr) else (b, a, False)
    if isinstance(size, FloatExpr) and size.op == "fsub" and number == 0.0 and isinstance(size.args[1], float):
        size, number = size.args
    if (
        not isinstance(size, FloatExpr)
        or size.op != "float"
        or isinstance(number, FloatExpr)
        or not math.isfinite(number)
    ):
        return None
    e = size.args[0]
    if op in ("eq", "ne"):
        same = CONSTRUCT["eq"](e, int(number)) if float(number).is_integer() else False
        return same if op == "eq" else CONSTRUCT["not"](same)
    if left:
        less = CONSTRUCT["lt"](e, math.ceil(number))
    else:
        less = CONSTRUCT["lt"](math.floor(number), e)
    return less if op == "lt" else CONSTRUCT["not"](less)


def _as_ratio(x: FloatLike) -> tuple[IntLike, IntLike] | None:
    """Return (a, n) with n > 0 and x == a / n exactly, for the forms where float arithmetic is exact on sizes; None otherwise."""
    if not isinstance(x, FloatExpr):
        return None
    if x.op == "float":
        return x.args[0], 1
    if x.op == "truediv" and OWN.lower(x.args[1]) > 0:
        return x.args
    if x.op == "fmul":
        for whole, factor in (x.args, x.args[::-1]):
            if isinstance(factor, float) and isinstance(whole, FloatExpr) and whole.op == "float":
                numerator, denominator = factor.as_integer_ratio() if math.isfinite(factor) else (0, 0)
                if 0 < denominator <= 1 << _MAX_SHIFT and abs(numerator) <= _MAX_NUMERATOR:
                    return whole.args[0] * numerator, denominator
    if x.op == "fdiv":
        whole, divisor = x.args
        if isinstance(whole, FloatExpr) and whole.op == "float" and isinstance(divisor, float):
            if divisor.is_integer() and 0 < divisor <= _MAX_NUMERATOR:
                return whole.args[0], int(divisor)
    return None


def round_to_int(how: str, x: FloatLike) -> IntLike:
    """x rounded to an integer; `how` is floor, ceil, trunc or round.

    floor(a / n) == a // n;  ceil(a / n) == -(-a // n);  trunc(a / n) == a // n  for a >= 0 (all for n > 0)
    """
    if not isinstance(x, FloatExpr):
        return _ROUND[how](x)
    ratio = _as_ratio(x)
    if ratio is not None:
        a, n = ratio
        if isinstance(n, int) and n == 1:
            return a
        if how == "floor" or (how == "trunc" and OWN.lower(a) >= 0):
            return rules.floordiv(a, n)
        if how == "ceil":
            return rules.ceildiv(a, n)
    return make_fn(how, (x,))


def is_integer(x: FloatLike) -> BoolLike:
    """Whether the float has no fractional part."""
    if not isinstance(x, FloatExpr):
        return float(x).is_integer()
    ratio = _as_ratio(x)
    if ratio is not None:
        remainder = rules.mod(*ratio)
        return CONSTRUCT["eq"](remainder, 0)
    return compare("eq", x, to_float(round_to_int("floor", x)))


def absolute(e: IntLike) -> IntLike:
    """abs(e)"""
    return rules.maximum(e, -e) if isinstance(e, Expr) else abs(e)


CONSTRUCT.update({how: (lambda x, how=how: round_to_int(how, x)) for how in _ROUND})
CONSTRUCT.update({op: (lambda *args, op=op: float_fn(op, *args)) for op in FLOAT_OPS})
CONSTRUCT["defined"] = defined
CONSTRUCT.update({f"float_{op}": (lambda a, b, op=op: compare(op, a, b)) for op in ("lt", "ge", "eq", "ne")})
