"""Expressions as source text of Python, C++ and Triton.

C++ text uses `int64_t` arithmetic. `/` and `%` appear only where bounds prove both operands non-negative; elsewhere the text calls
`treadle_floordiv` and `treadle_mod` of `CPP_HELPERS`, which round as Python does. Powers call a helper, and so do shifts whose count may
not fit.
Triton text follows the same rules with `TRITON_HELPERS`. `eval` of the Python text, with values for the symbols' names, gives the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from treadle_shapes.bounds import OWN, KnownRanges
from treadle_shapes.errors import ExpressionTooLargeError, SizeOverflowError, UsageError
from treadle_shapes.nodes import (
    CONSTRUCT,
    BoolExpr,
    Expr,
    Fn,
    Node,
    Product,
    Sum,
    Symbol,
    as_powers,
    as_terms,
    free_symbols,
    make_sum,
)
from treadle_shapes.ranges import Range

CPP_HELPERS = """\
static inline int64_t treadle_floordiv(int64_t a, int64_t b) {
  int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}
static inline int64_t treadle_mod(int64_t a, int64_t b) {
  int64_t r = a % b;
  return (r != 0 && ((r < 0) != (b < 0))) ? r + b : r;
}
static inline int64_t treadle_pow(int64_t a, int64_t n) {
  uint64_t r = 1, b = (uint64_t)a;
  for (; n > 0; n >>= 1, b *= b)
    if (n & 1) r *= b;
  return (int64_t)r;
}
static inline int64_t treadle_shl(int64_t a, int64_t n) { return n > 63 ? 0 : (int64_t)((uint64_t)a << n); }
static inline int64_t treadle_shr(int64_t a, int64_t n) { return a >> (n > 63 ? 63 : n); }
"""

TRITON_HELPERS = """\
@triton.jit
def treadle_floordiv(a, b):
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def treadle_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def treadle_pow(a, n):
    r = n * 0 + 1
    a = n * 0 + a
    for k in tl.static_range(6):
        r = tl.where(((n >> k) & 1) == 1, r * a, r)
        a = a * a
    return tl.where(n > 63, r * a, r)


@triton.jit
def treadle_shl(a, n):
    return tl.where(n > 63, 0, a << tl.minimum(n, 63))


@triton.jit
def treadle_shr(a, n):
    return a >> tl.minimum(n, 63)
"""

# The text repeats a shared part at every occurrence, so the text of a small graph can be huge.
_MAX_PARTS = 20_000
_MAX_READABLE = 500

_ADVICE = "compute parts of it separately and make symbols of them"


def _symbols_of(e: Any) -> str:
    return ", ".join(sorted([s.name for s in free_symbols(e)])) or "constants"


# Binding strengths, weakest first. An operand that binds less than its place requires gets parentheses.
_OR, _AND, _NOT, _COMPARE, _ADD, _MUL, _UNARY, _ATOM = range(8)


class _Printer:
    """Renders nodes as (text, binding strength). Subclasses define calls and divisions."""

    conjunction, disjunction, negation = " and ", " or ", "not "
    truth = ("False", "True")

    def __init__(self, known_ranges: KnownRanges, names: Mapping[Any, str] | None = None) -> None:
        self.known_ranges = known_ranges
        self.left = _MAX_PARTS
        self.names = names or {}
        self.subject: Any = None

    def whole(self, e: Any) -> str:
        """Return the text of an expression. The entry point: sets the expression that messages name."""
        self.subject = e
        try:
            return self.text(e)
        except RecursionError:
            raise ExpressionTooLargeError(
                f"an expression of {_symbols_of(e)} is nested too deeply to be written as text; {_ADVICE}"
            ) from None

    def text(self, e: Any) -> str:
        return self.render(e)[0]

    def inside(self, e: Any, strength: int) -> str:
        text, own = self.render(e)
        self.left -= len(text) >> 6  # a power repeats its base
        return text if own >= strength else f"({text})"

    def number(self, value: int) -> str:
        return str(value)

    def signed(self, value: int) -> str:
        """Return a constant as the last term of a sum."""
        return f" {'+' if value > 0 else '-'} {self.number(abs(value))}"

    def render(self, e: Any) -> tuple[str, int]:
        self.left -= 1
        if self.left < 0:
            raise ExpressionTooLargeError(
                f"an expression of {_symbols_of(e)} has more than {_MAX_PARTS} parts as text; {_ADVICE}"
            )
        if isinstance(e, bool):
            return self.truth[e], _ATOM
        if isinstance(e, int):
            return self.number(e), (_ATOM if e >= 0 else _UNARY)
        if isinstance(e, Symbol):
            return self.names.get(e, e.name), _ATOM
        if isinstance(e, Sum):
            return self.sum(e)
        if isinstance(e, Product):
            return self.product(e, 1), _MUL
        if isinstance(e, Fn):
            return (self.names[e], _ATOM) if e in self.names else self.function(e)
        if isinstance(e, BoolExpr):
            return (self.names[e], _ATOM) if e in self.names else self.condition(e)
        if isinstance(e, float):
            return _float_text(e), (_UNARY if math.copysign(1.0, e) < 0 else _ATOM)
        if isinstance(e, Node):
            return self.float(e)
        raise UsageError(f"no source text for {e!r}")

    def float(self, e: Any) -> tuple[str, int]:
        if not e.args:  # a float symbol
            name = self.names.get(e)
            return (e.name if name is None else name), _ATOM
        sign = _FLOAT_INFIX.get(e.op)
        if sign is None:
            return self.function(e)
        return f"({self.inside(e.args[0], _ATOM)}{sign}{self.inside(e.args[1], _ATOM)})", _ATOM

    def product(self, monomial: Expr, c: int) -> str:
        factors = [] if c == 1 else [self.number(c)]
        for atom, power in as_powers(monomial).items():
            for _ in range(power):
                # Later factors need parentheses: `a * b // c` means `(a * b) // c`.
                factors.append(self.inside(atom, _MUL + (len(factors) > 0)))
        return "*".join(factors)

    def sum(self, e: Sum) -> tuple[str, int]:
        terms = sorted(e.coefficients.items(), key=lambda item: item[1] < 0)
        text = ""
        for monomial, c in terms:
            if not text:
                text = self.product(monomial, c) if c != -1 else f"-{self.inside(monomial, _UNARY)}"
            else:
                text += f" {'+' if c > 0 else '-'} {self.product(monomial, abs(c))}"
        if e.const and len(terms) and terms[0][1] < 0 < e.const:
            # 8 - i rather than -i + 8
            negated = make_sum({m: -c for m, c in terms}, 0)
            return f"{self.number(e.const)} - {self.inside(negated, _MUL)}", _ADD
        if e.const:
            text += self.signed(e.const)
        return text, (_ADD if len(terms) > 1 or e.const else _MUL if terms[0][1] != -1 else _UNARY)

    def function(self, e: Fn) -> tuple[str, int]:
        handler = self.functions.get(e.op)
        if handler is None:
            return self.call(e.op, e.args), _ATOM
        return handler(self, e)

    def call(self, name: str, args: tuple) -> str:
        return f"{name}({', '.join(self.text(arg) for arg in args)})"

    def infix(self, e: Fn | BoolExpr, sign: str, strength: int) -> tuple[str, int]:
        a, b = e.args
        return f"{self.inside(a, strength)}{sign}{self.inside(b, strength + 1)}", strength

    def condition(self, e: BoolExpr) -> tuple[str, int]:
        if e.op in _COMPARISONS:
            return self.comparison(e)
        if e.op == "and":
            return self.conjunction.join(self.inside(arg, _AND + 1) for arg in e.args), _AND
        if e.op == "or":
            return self.disjunction.join(self.inside(arg, _OR + 1) for arg in e.args), _OR
        if e.op == "not":
            return f"{self.negation}{self.inside(e.args[0], _ATOM)}", _NOT
        if e.op in _FLOAT_COMPARISONS:
            return self.infix(e, _FLOAT_COMPARISONS[e.op], _COMPARE)
        if e.op == "defined":
            return f"isinstance({self.text(e.args[0])}, float)", _ATOM
        return self.call(e.op, e.args), _ATOM

    def comparison(self, e: BoolExpr) -> tuple[str, int]:
        """Render p <= 0 with the negative terms on the right. The right side is the constant if no other term is there."""
        coefficients, const = as_terms(e.args[0])
        left = {m: c for m, c in coefficients.items() if c > 0}
        right = {m: -c for m, c in coefficients.items() if c < 0}
        sign = _COMPARISONS[e.op]
        if not left:
            left, right, const, sign = right, left, -const, (">=" if sign == "<=" else sign)
        a = make_sum(left, const if const > 0 and right else 0)
        b = make_sum(right, 0 if const > 0 and right else -const)
        if e.op == "le0" and const == 1 and right:  # a + 1 <= b is a < b
            a, sign = make_sum(left, 0), "<"
        return f"{self.inside(a, _ADD)} {sign} {self.inside(b, _ADD)}", _COMPARE

    functions: Mapping[str, Callable[..., tuple[str, int]]] = {}

    def non_negative(self, e: Fn) -> bool:
        a, b = e.args
        return self.known_ranges.lower(a) >= 0 and self.known_ranges.lower(b) >= 0


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return f"{'-' * (math.copysign(1.0, value) < 0)}math.{'nan' if value != value else 'inf'}"


_FLOAT_INFIX = {"fadd": " + ", "fsub": " - ", "fmul": "*", "fdiv": " / ", "truediv": " / ", "fmod": " % ",
                "ffloordiv": " // "}  # fmt: skip
_COMPARISONS = {"le0": "<=", "eq0": "==", "ne0": "!="}
_FLOAT_COMPARISONS = {"float_lt": " < ", "float_ge": " >= ", "float_eq": " == ", "float_ne": " != "}


class _Python(_Printer):
    functions = {
        "product": lambda p, e: p.infix(e, "*", _MUL),
        "floordiv": lambda p, e: p.infix(e, "//", _MUL),
        "mod": lambda p, e: p.infix(e, "%", _MUL),
        "shl": lambda p, e: (f"({p.inside(e.args[0], _ADD)} << {p.inside(e.args[1], _ADD)})", _ATOM),
        "shr": lambda p, e: (f"({p.inside(e.args[0], _ADD)} >> {p.inside(e.args[1], _ADD)})", _ATOM),
        "bitand": lambda p, e: (f"({p.inside(e.args[0], _ADD)} & {p.inside(e.args[1], _ADD)})", _ATOM),
        "bitor": lambda p, e: (f"({p.inside(e.args[0], _ADD)} | {p.inside(e.args[1], _ADD)})", _ATOM),
        "bitxor": lambda p, e: (f"({p.inside(e.args[0], _ADD)} ^ {p.inside(e.args[1], _ADD)})", _ATOM),
        "pow": lambda p, e: (f"{p.inside(e.args[0], _ATOM)}**{p.inside(e.args[1], _ATOM)}", _UNARY),
        "where": lambda p, e: (f"({p.text(e.args[1])} if {p.text(e.args[0])} else {p.text(e.args[2])})", _ATOM),
        "fwhere": lambda p, e: (f"({p.text(e.args[1])} if {p.text(e.args[0])} else {p.text(e.args[2])})", _ATOM),
        "fpow": lambda p, e: (f"({p.inside(e.args[0], _ATOM)} ** {p.inside(e.args[1], _ATOM)})", _ATOM),
        "fneg": lambda p, e: (f"(-{p.inside(e.args[0], _ATOM)})", _ATOM),
        "fmin": lambda p, e: (p.call("min", e.args), _ATOM),
        "fmax": lambda p, e: (p.call("max", e.args), _ATOM),
        "fabs": lambda p, e: (p.call("abs", e.args), _ATOM),
        "fcopysign": lambda p, e: (p.call("math.copysign", e.args), _ATOM),
        "fround": lambda p, e: (p.call("round", e.args), _ATOM),
        "floor": lambda p, e: (p.call("math.floor", e.args), _ATOM),
        "ceil": lambda p, e: (p.call("math.ceil", e.args), _ATOM),
        "trunc": lambda p, e: (p.call("int", e.args), _ATOM),
    }

    def function(self, e: Any) -> tuple[str, int]:
        if e.op.startswith("math_"):
            return self.call(f"math.{e.op[5:]}", e.args), _ATOM
        return super().function(e)


class _C(_Printer):
    """The common part of C++ and Triton: 64-bit integers, and helpers for divisions unless both operands are non-negative."""

    divide = "/"

    def division(self, e: Fn) -> tuple[str, int]:
        return (
            self.infix(e, self.divide, _MUL) if self.non_negative(e) else (self.call("treadle_floordiv", e.args), _ATOM)
        )

    def remainder(self, e: Fn) -> tuple[str, int]:
        return self.infix(e, " % ", _MUL) if self.non_negative(e) else (self.call("treadle_mod", e.args), _ATOM)

    def number(self, value: int) -> str:
        if not -(2**63) <= value < 2**63:
            raise SizeOverflowError(
                f"the constant {value} in an expression of {_symbols_of(self.subject)} does not fit in 64 bits; use smaller sizes"
            )
        return str(value)

    def signed(self, value: int) -> str:
        # -2 ** 63 fits in an int64, 2 ** 63 does not.
        return f" + {self.number(value)}" if value == -(2**63) else super().signed(value)

    def shift(self, e: Fn, sign: str) -> tuple[str, int]:
        a, n = e.args
        low, high = self.known_ranges.interval(n)
        # A literal may have 32 bits, and `<<` of a negative number is undefined before C++20.
        plain = isinstance(a, Expr) and low >= 0 and high < 64 and (sign == ">>" or self.known_ranges.lower(a) >= 0)
        return (
            self.bits(e, sign)
            if plain
            else (self.call("treadle_shl" if sign == "<<" else "treadle_shr", e.args), _ATOM)
        )

    def bits(self, e: Fn, sign: str) -> tuple[str, int]:
        return f"({self.inside(e.args[0], _ATOM)} {sign} {self.inside(e.args[1], _ATOM)})", _ATOM

    def fold(self, e: Fn, name: str) -> tuple[str, int]:
        """Render min and max of more than two arguments as nested calls of two."""
        text = self.text(e.args[0])
        for arg in e.args[1:]:
            text = f"{name}({text}, {self.text(arg)})"
        return text, _ATOM


def _ternary(p: _Printer, e: Fn) -> tuple[str, int]:
    condition, a, b = e.args
    # Two literals would make a 32-bit int.
    first = f"int64_t({p.text(a)})" if isinstance(a, int) and isinstance(b, int) else p.text(a)
    return f"({p.inside(condition, _COMPARE)} ? {first} : {p.text(b)})", _ATOM


_C_FUNCTIONS: dict[str, Callable[..., tuple[str, int]]] = {
    "product": lambda p, e: p.infix(e, "*", _MUL),
    "floordiv": lambda p, e: p.division(e),
    "mod": lambda p, e: p.remainder(e),
    "shl": lambda p, e: p.shift(e, "<<"),
    "shr": lambda p, e: p.shift(e, ">>"),
    "bitand": lambda p, e: p.bits(e, "&"),
    "bitor": lambda p, e: p.bits(e, "|"),
    "bitxor": lambda p, e: p.bits(e, "^"),
    "pow": lambda p, e: (p.call("treadle_pow", e.args), _ATOM),
}


class _Cpp(_C):
    conjunction, disjunction, negation = " && ", " || ", "!"
    truth = ("false", "true")
    functions = {
        **_C_FUNCTIONS,
        "where": _ternary,
        "min": lambda p, e: p.fold(e, "std::min<int64_t>"),
        "max": lambda p, e: p.fold(e, "std::max<int64_t>"),
    }

    def number(self, value: int) -> str:
        text = super().number(value)
        if -(2**31) < value < 2**31:
            return text
        # -9223372036854775808 is not a literal in C++: it is the negation of one that does not fit.
        return f"{text}LL" if value > -(2**63) else f"({value + 1}LL - 1)"


class _Triton(_C):
    divide = " // "
    conjunction, disjunction, negation = " & ", " | ", "~"
    functions = {
        **_C_FUNCTIONS,
        "where": lambda p, e: (p.call("tl.where", e.args), _ATOM),
        "min": lambda p, e: p.fold(e, "tl.minimum"),
        "max": lambda p, e: p.fold(e, "tl.maximum"),
    }

    def comparison(self, e: BoolExpr) -> tuple[str, int]:
        # & and | bind tighter than comparisons in Triton's Python.
        return f"({super().comparison(e)[0]})", _ATOM


def _to_known_ranges(known: Mapping[Symbol, Range] | KnownRanges | None) -> KnownRanges:
    if isinstance(known, KnownRanges):
        return known
    return KnownRanges(known) if known else OWN


def to_python(e: Any, names: Mapping[Any, str] | None = None) -> str:
    """Return Python source of an expression or condition. names: texts for symbols in place of their own names."""
    return _Python(OWN, names).whole(e)


def to_cpp(
    e: Any, known: Mapping[Symbol, Range] | KnownRanges | None = None, names: Mapping[Any, str] | None = None
) -> str:
    """Return C++ source in int64_t arithmetic. It needs `CPP_HELPERS` and <algorithm> unless every division is plain.

    names: texts for symbols in place of their own names, and for subexpressions that are computed elsewhere.
    """
    return _Cpp(_to_known_ranges(known), names).whole(e)


def to_triton(
    e: Any, known: Mapping[Symbol, Range] | KnownRanges | None = None, names: Mapping[Any, str] | None = None
) -> str:
    """Return Triton source. It needs `TRITON_HELPERS` unless every division is plain. names: as for `to_cpp`."""
    return _Triton(_to_known_ranges(known), names).whole(e)


def text(e: Node, names: Mapping[Any, str] | None = None) -> str:
    """Return Python source for people; a short description where the source would be too long or too deeply nested."""
    printer = _Python(OWN, names)
    printer.left = _MAX_READABLE
    try:
        return printer.whole(e)
    except ExpressionTooLargeError:
        symbols = sorted([s.name if names is None else names.get(s, s.name) for s in free_symbols(e)])
        return f"<a large expression of {', '.join(symbols)}>"


CONSTRUCT["text"] = text
