"""Walking expressions: substitution, evaluation, simplification under ranges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, overload

from treadle_shapes import logic, rules
from treadle_shapes.bounds import OWN, KnownRanges
from treadle_shapes.errors import DivisionByZeroError, ExpressionTooLargeError, MissingValueError, UsageError
from treadle_shapes.nodes import (
    CONSTRUCT,
    BoolExpr,
    BoolLike,
    Expr,
    Fn,
    IntLike,
    Node,
    Product,
    Sum,
    Symbol,
    as_powers,
    as_terms,
    make_fn,
    make_sum,
)
from treadle_shapes.ranges import Range

#: op -> constructor of a function node from its arguments; `known` supplies ranges
BUILD: dict[str, Callable[..., Any]] = {
    "floordiv": rules.floordiv,
    "mod": rules.mod,
    "min": lambda *args: rules._extremum("min", args[:-1], args[-1]),
    "max": lambda *args: rules._extremum("max", args[:-1], args[-1]),
    "where": lambda c, a, b, _known: rules.where(c, a, b),
    "pow": lambda a, n, _known: rules.power(a, n),
    "product": lambda a, b, _known: a * b,
    "shl": lambda a, n, _known: rules.shift_left(a, n),
    "shr": lambda a, n, _known: rules.shift_right(a, n),
}


def rebuild(node: Any, args: list, known: KnownRanges) -> Any:
    """Apply the node's operation to other arguments."""
    if isinstance(node, Sum):
        result: IntLike = node.const
        for part, c in zip(args, node.coefficients.values(), strict=True):
            result = result + part * c
        return result
    if isinstance(node, Product):
        result = 1
        for part, power in zip(args, node.powers.values(), strict=True):
            for _ in range(power):
                result = result * part
        return result
    if isinstance(node, Fn):
        build = BUILD.get(node.op)
        return CONSTRUCT[node.op](*args) if build is None else build(*args, known)
    if not args:
        return node  # a float symbol
    build = logic.BUILD.get(node.op)
    if build is None:
        return CONSTRUCT[node.op](*args)
    return build(*args, known) if node.op in logic.COMPARISONS else build(*args)


def _arguments(node: Any) -> Any:
    if isinstance(node, Sum):
        return node.coefficients
    return node.powers if isinstance(node, Product) else node.args


# -- substitution -----------------------------------------------------------------------------------------------------


def _substitute(e: Any, values: Mapping[Symbol, IntLike], done: dict) -> Any:
    if not isinstance(e, Node):
        return e
    found = done.get(e)
    if found is None:
        if e in values:
            found = values[e]  # type: ignore[index]
        elif values.keys().isdisjoint(e.free_symbols):  # type: ignore[attr-defined]
            found = e
        else:
            found = rebuild(e, [_substitute(arg, values, done) for arg in _arguments(e)], OWN)
        done[e] = found
    return found


@overload
def substitute(e: IntLike, values: Mapping[Symbol, IntLike]) -> IntLike: ...
@overload
def substitute(e: BoolLike, values: Mapping[Symbol, IntLike]) -> BoolLike: ...
def substitute(e: Any, values: Mapping[Symbol, IntLike]) -> Any:
    """Replace symbols in `e` by expressions or ints, all at once, and normalise the result."""
    try:
        return _substitute(e, values, {})
    except RecursionError:
        raise ExpressionTooLargeError(_too_deep("substitute", e)) from None


# -- evaluation -------------------------------------------------------------------------------------------------------


def _floordiv(a: int, b: int) -> int:
    if b == 0:
        raise DivisionByZeroError(f"{a} // 0")
    return a // b


def _mod(a: int, b: int) -> int:
    if b == 0:
        raise DivisionByZeroError(f"{a} % 0")
    return a % b


#: value of each operation on Python values
EVALUATE: dict[str, Callable[..., Any]] = {
    "floordiv": _floordiv,
    "mod": _mod,
    "min": min,
    "max": max,
    "product": rules.integer_product,
    "pow": rules.integer_power,
    "shl": rules.integer_shift,
    "shr": rules.integer_shift_right,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "le0": lambda p: p <= 0,
    "eq0": lambda p: p == 0,
    "ne0": lambda p: p != 0,
    "not": lambda c: not c,
}


def _evaluate(e: Any, values: Mapping[Symbol, int], done: dict) -> Any:
    if not isinstance(e, Node):
        return e
    if isinstance(e, Symbol) or not (isinstance(e, (Sum, Product)) or e.args):  # type: ignore[attr-defined]
        try:
            return values[e]  # type: ignore[index]
        except KeyError:
            raise MissingValueError(f"evaluate: no value for symbol {e.name}") from None  # type: ignore[attr-defined]
    found = done.get(e)
    if found is None:
        found = done[e] = _evaluate_node(e, values, done)
    return found


def _evaluate_node(e: Any, values: Mapping[Symbol, int], done: dict) -> Any:
    if isinstance(e, Sum):
        return e.const + sum(c * _evaluate(m, values, done) for m, c in e.coefficients.items())
    if isinstance(e, Product):
        result = 1
        for atom, power in e.powers.items():
            factor = _evaluate(atom, values, done)
            result *= factor if power == 1 else rules.integer_power(factor, power)
        return result
    # Evaluate only the chosen side: the other one may divide by zero.
    if e.op in ("where", "fwhere"):
        condition, a, b = e.args
        return _evaluate(a if _evaluate(condition, values, done) else b, values, done)
    if e.op == "and":
        return all(_evaluate(arg, values, done) for arg in e.args)
    if e.op == "or":
        return any(_evaluate(arg, values, done) for arg in e.args)
    return EVALUATE[e.op](*[_evaluate(arg, values, done) for arg in e.args])


@overload
def evaluate(e: BoolLike, values: Mapping[Symbol, int], known: dict[Any, Any] | None = ...) -> bool: ...  # type: ignore[overload-overlap]
@overload
def evaluate(e: IntLike, values: Mapping[Symbol, int], known: dict[Any, Any] | None = ...) -> int: ...
def evaluate(e: Any, values: Mapping[Symbol, int], known: dict[Any, Any] | None = None) -> Any:
    """Return the value of an expression or condition.

    known: what other expressions have come to for the same values, and parts of them; filled in. Expressions of one program share parts.

    Raises MissingValueError for a symbol without a value, DivisionByZeroError, SizeOverflowError for a power or shift with a huge
    result, ExpressionTooLargeError.
    """
    try:
        return _evaluate(e, values, {} if known is None else known)
    except RecursionError:
        raise ExpressionTooLargeError(_too_deep("evaluate", e)) from None


def _too_deep(what: str, e: Any) -> str:
    names = ", ".join(sorted([s.name for s in e.free_symbols]))
    return f"{what}: an expression of {names} is nested too deeply; compute parts of it separately and make symbols of them"


# -- simplification ---------------------------------------------------------------------------------------------------


def join_quotient_remainder(e: Sum, known: KnownRanges) -> IntLike | None:
    """c * (x % n) + c*n * (x // n) == c * x"""
    for monomial, c in e.coefficients.items():
        for atom, power in as_powers(monomial).items():
            if not isinstance(atom, Fn) or atom.op != "mod" or power != 1:
                continue
            x, n = atom.args
            others = rules.divide_monomial(monomial, atom)
            quotient = rules.floordiv(x, n, known) * n
            if others is None or isinstance(quotient, int):
                continue
            wanted, const = as_terms(quotient * others * c)
            if const == 0 and all(e.coefficients.get(m) == k for m, k in wanted.items()):
                rest = {m: k for m, k in e.coefficients.items() if m not in wanted and m is not monomial}
                return make_sum(rest, e.const) + x * others * c
    return None


def exact_quotient(e: Expr, known: KnownRanges) -> IntLike | None:
    """c*n * (x // n) == c * (x - r)  when  x % n == r is a known fact"""
    coefficients, const = as_terms(e)
    for monomial, c in coefficients.items():
        for atom, power in as_powers(monomial).items():
            if not isinstance(atom, Fn) or atom.op != "floordiv" or power != 1:
                continue
            x, n = atom.args
            remainder = known.values.get(make_fn("mod", (x, n)), rules.mod(x, n, known))
            others = rules.divide_monomial(monomial, atom)
            if not isinstance(remainder, int) or others is None:
                continue
            factor, rest = rules.split_multiple(others * c, n)
            if isinstance(rest, int) and rest == 0:
                return (
                    make_sum({m: k for m, k in coefficients.items() if m is not monomial}, const)
                    + (x - remainder) * factor
                )
    return None


def _simplify(e: Any, known: KnownRanges) -> Any:
    if not isinstance(e, Node):
        return e
    found = known.memo.get(e)
    if found is not None:
        return found
    if isinstance(e, Symbol):
        low, high = known.interval(e)
        result: Any = int(low) if low == high else e
    else:
        result = _simplify_node(e, known)
    known.memo[e] = result
    return result


def _only_ranges_decide(p: Expr, known: KnownRanges) -> bool:
    """Whether no rule applies inside p: it is a polynomial of symbols, none of them known to be constant."""
    for monomial in as_terms(p)[0]:
        for atom in as_powers(monomial):
            if not isinstance(atom, Symbol):
                return False
            low, high = known.interval(atom)
            if low == high:
                return False
    return True


def _simplify_node(e: Any, known: KnownRanges) -> Any:
    if isinstance(e, BoolExpr) and e.op in logic.COMPARISONS and _only_ranges_decide(e.args[0], known):
        return logic.BUILD[e.op](e.args[0], known)
    args = [_simplify(arg, known) for arg in _arguments(e)]
    plain = isinstance(e, (Sum, Product))
    if plain and all(new is old for new, old in zip(args, _arguments(e), strict=True)):
        result = e
    elif isinstance(e, Fn) and e.op == "where" and isinstance(args[0], bool):
        return args[1] if args[0] else args[2]
    else:
        result = rebuild(e, args, known)
    if known.values and isinstance(result, (Sum, Product, Fn)):
        joined = exact_quotient(result, known)
        if joined is not None:
            return _simplify(joined, known)
    if isinstance(result, Sum):
        joined = join_quotient_remainder(result, known)
        if joined is not None:
            return _simplify(joined, known)
    if isinstance(result, Expr) and not plain and result is not e:
        # A rule applied. Its result may hold new quotients that ranges simplify.
        return _simplify(result, known) if result not in known.memo else known.memo[result]
    return result


@lru_cache(256)
def _known_ranges(items: tuple) -> KnownRanges:
    return KnownRanges(dict(items))


@overload
def simplify(e: IntLike, known: Mapping[Symbol, Range] | KnownRanges | None = None) -> IntLike: ...
@overload
def simplify(e: BoolLike, known: Mapping[Symbol, Range] | KnownRanges | None = None) -> BoolLike: ...
def simplify(e: Any, known: Mapping[Symbol, Range] | KnownRanges | None = None) -> Any:
    """An equal, usually simpler expression, given the ranges of symbols (`0 <= i < n` is `{i: Range(0, n - 1)}`).

    >>> simplify((i * n + j) // n, {i: Range(0, m - 1), j: Range(0, n - 1)})
    i
    """
    if not isinstance(e, Node):
        return e
    if not isinstance(known, KnownRanges):
        known = _known_ranges(tuple(known.items()) if known else ())
        if len(known.memo) > 1 << 14:
            known.memo.clear()
    try:
        return _simplify(e, known)
    except RecursionError:
        return e


def make_opaque(op: str) -> Callable[[IntLike, IntLike], IntLike]:
    """Return the constructor of a two-operand function without rules. It folds constants and returns an atom otherwise."""

    def build(a: IntLike, b: IntLike) -> IntLike:
        if not isinstance(a, (int, Expr)) or not isinstance(b, (int, Expr)):
            raise UsageError(f"{op}: expected ints or Exprs, got {a!r} and {b!r}")
        return EVALUATE[op](a, b) if isinstance(a, int) and isinstance(b, int) else make_fn(op, (a, b))

    return build


bit_and, bit_or, bit_xor = make_opaque("bitand"), make_opaque("bitor"), make_opaque("bitxor")
CONSTRUCT.update({"bitand": bit_and, "bitor": bit_or, "bitxor": bit_xor})
