"""The rewrite rules for division, remainder, minimum, maximum and selection, each with its equation.

A rule takes the operands and a `KnownRanges`, and returns the simpler form or None. It holds for all integers for which the
left side is defined (no zero divisor). `//` and `%` are Python's: floor division and the remainder with the divisor's sign. Tests evaluate
both sides of every rule on random integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from typing import TypeAlias

from treadle_shapes.bounds import OWN, KnownRanges, primitive
from treadle_shapes.errors import DivisionByZeroError, NegativeCountError, SizeOverflowError, UsageError
from treadle_shapes.nodes import (
    _CACHE_SIZE,
    CONSTRUCT,
    MAX_BITS,
    BoolExpr,
    BoolLike,
    Expr,
    Fn,
    IntLike,
    as_powers,
    as_terms,
    make_fn,
    make_product,
    make_sum,
)

Rule: TypeAlias = Callable[[IntLike, IntLike, KnownRanges], "IntLike | None"]


# -- taking multiples of the divisor out ------------------------------------------------------------------------------


def divide_monomial(monomial: Expr, divisor: Expr) -> IntLike | None:
    """Return monomial / divisor when the quotient is a monomial, None otherwise."""
    powers = dict(as_powers(monomial))
    for atom, power in as_powers(divisor).items():
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        if left:
            powers[atom] = left
        else:
            del powers[atom]
    return make_product(powers)


def _split_constant(a: Expr, n: int) -> tuple[IntLike, IntLike]:
    coefficients, const = as_terms(a)
    quotient, rest = {}, {}
    for monomial, c in coefficients.items():
        # Truncate, so that -i % 8 keeps its small coefficient.
        q = c // n if c >= 0 else -(-c // n)
        if q:
            quotient[monomial] = q
        if c != q * n:
            rest[monomial] = c - q * n
    if not quotient and 0 <= const < n:
        return 0, a
    return make_sum(quotient, const // n), make_sum(rest, const % n)


def _leading(terms: dict[Expr, int]) -> tuple[Expr, int]:
    return max(terms.items(), key=lambda item: (sum(as_powers(item[0]).values()), item[0].order))


def _split_symbolic(a: Expr, n: Expr) -> tuple[IntLike, IntLike]:
    n_terms, n_const = as_terms(n)
    lead, lead_c = _leading(n_terms)
    single = len(n_terms) == 1 and n_const == 0
    quotient: IntLike = 0
    rest: IntLike = a
    for monomial, c in as_terms(a)[0].items():
        if c % lead_c:
            continue
        factor = divide_monomial(monomial, lead)
        if factor is None:
            continue
        factor = factor * (c // lead_c)
        left = rest - factor * n
        if single or _size(left) < _size(rest):
            quotient, rest = quotient + factor, left
    return quotient, rest


def _size(e: IntLike) -> int:
    coefficients, const = as_terms(e)
    return len(coefficients) + (const != 0)


def split_multiple(a: IntLike, n: IntLike) -> tuple[IntLike, IntLike]:
    """(q, r) with a == q * n + r, as much as possible moved into q; always true, whatever the symbols are."""
    if not isinstance(a, Expr):
        return (a // n, a % n) if isinstance(n, int) else (0, a)
    return _split_symbolic(a, n) if isinstance(n, Expr) else _split_constant(a, n)


def _content(e: IntLike) -> int:
    """Return the greatest common divisor of the non-constant terms' coefficients, or the number itself for a constant."""
    coefficients, const = as_terms(e)
    return gcd(*coefficients.values()) if coefficients else abs(const)


def _divide_content(e: IntLike, g: int) -> IntLike:
    """floor(e / g) where g divides the coefficients (not necessarily the constant)."""
    coefficients, const = as_terms(e)
    return make_sum({m: c // g for m, c in coefficients.items()}, const // g)


# -- rules for a // n and a % n, after split_multiple -----------------------------------------------------------------


def quotient_in_range(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """a // n == k  when  k*n <= a < (k+1)*n  (k = 0 or -1, or any k for constant n)"""
    low, high = known.interval(a)
    if isinstance(n, int):
        if low == high or (low - low == 0 and high - high == 0 and low // n == high // n):
            return int(low // n)
        return None
    if known.lower(n) < 1:
        return None
    if low >= 0 and known.lower(n - a) >= 1:
        return 0
    if high < 0 and known.lower(a + n) >= 0:
        return -1
    return None


def remainder_in_range(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """a % n == a - k*n  when  a // n == k"""
    k = quotient_in_range(a, n, known)
    return None if k is None else a - k * n


def quotient_of_content(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(g*x + d) // (g*m) == (x + d//g) // m  for g > 0"""
    g = gcd(_content(a), _content(n), as_terms(n)[1])
    return floordiv(_divide_content(a, g), _divide_content(n, g), known) if g > 1 else None


def remainder_of_content(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(g*x + d) % (g*m) == g * ((x + d//g) % m) + d % g  for g > 0"""
    g = gcd(_content(a), _content(n), as_terms(n)[1])
    if g <= 1:
        return None
    return mod(_divide_content(a, g), _divide_content(n, g), known) * g + as_terms(a)[1] % g


def quotient_of_common_factor(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(x*s) // (y*s) == x // y  for s != 0, which the left side implies"""
    common = _common_factor(a, n)
    return None if common is None else floordiv(_divide_all(a, common), _divide_all(n, common), known)


def remainder_of_common_factor(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(x*s) % (y*s) == s * (x % y)  for s != 0, which the left side implies"""
    common = _common_factor(a, n)
    return None if common is None else mod(_divide_all(a, common), _divide_all(n, common), known) * common


def _common_factor(a: IntLike, n: IntLike) -> Expr | None:
    (a_terms, a_const), (n_terms, n_const) = as_terms(a), as_terms(n)
    if a_const or n_const or not a_terms or not n_terms:
        return None
    monomials = [*n_terms, *a_terms]
    common = dict(as_powers(monomials[0]))
    for monomial in monomials[1:]:
        powers = as_powers(monomial)
        common = {atom: min(p, powers[atom]) for atom, p in common.items() if atom in powers}
        if not common:
            return None
    factor = make_product(common)
    return factor if isinstance(factor, Expr) else None


def _divide_all(e: IntLike, factor: Expr) -> IntLike:
    coefficients, _const = as_terms(e)
    result: dict[Expr, int] = {}
    const = 0
    for monomial, c in coefficients.items():
        quotient = divide_monomial(monomial, factor)
        if isinstance(quotient, Expr):
            result[quotient] = c
        else:
            const += c
    return make_sum(result, const)


def factors_of(e: IntLike) -> frozenset[Expr]:
    """The factors of an expression, numbers left out: it is 0 only where one of them is.

    8*n -> {n};  n*m*m -> {n, m};  2*n*k + 4*m*k -> {k, n + 2*m};  6 -> {}
    """
    if not isinstance(e, Expr):
        return frozenset()
    coefficients, const = as_terms(e)
    number = gcd(const, *coefficients.values())
    rest = make_sum({monomial: c // number for monomial, c in coefficients.items()}, const // number)
    common = _common_factor(rest, rest)
    if common is None:
        return frozenset([rest] if isinstance(rest, Expr) else [])
    return frozenset(as_powers(common)) | factors_of(_divide_all(rest, common))


def quotient_of_quotient(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(x // m) // n == x // (m*n)  for n > 0"""
    if isinstance(a, Fn) and a.op == "floordiv" and known.lower(n) >= 1:
        x, m = a.args
        return floordiv(x, m * n, known)
    return None


def quotient_of_remainder(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(x % (n*m)) // n == (x // n) % m  for n > 0"""
    if isinstance(a, Fn) and a.op == "mod" and known.lower(n) >= 1:
        x, whole = a.args
        m, rest = split_multiple(whole, n)
        if isinstance(rest, int) and rest == 0:
            return mod(floordiv(x, n, known), m, known)
    return None


def remainder_of_remainder(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(y + c * (x % (n*m))) % n == (y + c*x) % n"""
    coefficients, _const = as_terms(a)
    for monomial, c in coefficients.items():
        if isinstance(monomial, Fn) and monomial.op == "mod":
            x, whole = monomial.args
            rest = split_multiple(whole, n)[1]
            if isinstance(rest, int) and rest == 0:
                return mod(a - monomial * c + x * c, n, known)
    return None


def remainder_of_residue(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(y + c*x) % n == (y + c*r) % n  when  x % m == r is known and n divides c*m"""
    if not known.residues or not isinstance(n, int) or not isinstance(a, Expr):
        return None
    factor, x, const = primitive(a)
    whole = known.residues.get(x)
    if whole is not None and factor * whole[0] % n == 0:
        return (factor * whole[1] + const) % n
    for monomial, c in as_terms(a)[0].items():
        fact = known.residues.get(monomial)
        if fact is not None and c * fact[0] % n == 0:
            return mod(a - monomial * c + c * fact[1], n, known)
    return None


def remainder_of_quotient(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(x // m) % n == (x % (m*n)) // m  when the right side is known and m, n > 0"""
    if not known.residues or not isinstance(n, int) or not isinstance(a, Fn) or a.op != "floordiv":
        return None
    x, m = a.args
    if not isinstance(m, int) or m < 1 or n < 1:
        return None
    remainder = remainder_of_residue(x, m * n, known)
    return remainder // m if isinstance(remainder, int) else None


def _small_part(a: IntLike, n: IntLike, known: KnownRanges) -> tuple[IntLike, IntLike, IntLike] | None:
    """(g, x, y) with a == g*x + y, g dividing n, and 0 <= y < g proven; g is common to n and some term of a."""
    a_terms, _ = as_terms(a)
    n_terms, n_const = as_terms(n)
    if len(a_terms) < 2 and as_terms(a)[1] == 0:
        return None
    tried = set()
    for monomial, c in a_terms.items():
        g = _common_divisor(monomial, c, n_terms, n_const)
        if g in tried or (isinstance(g, int) and g == 1):
            continue
        tried.add(g)
        x, y = split_multiple(a, g)
        if known.lower(y) >= 0 and known.lower(g - y) >= 1:
            return g, x, y
    return None


def _common_divisor(monomial: Expr, c: int, n_terms: dict[Expr, int], n_const: int) -> IntLike:
    """The common part of one term c*monomial and the divisor."""
    if not n_terms:
        return gcd(c, n_const)
    if len(n_terms) > 1 or n_const:
        return gcd(c, *n_terms.values(), n_const)
    ((n_monomial, n_c),) = n_terms.items()
    powers = as_powers(n_monomial)
    common = {atom: min(p, powers[atom]) for atom, p in as_powers(monomial).items() if atom in powers}
    return make_product(common) * gcd(c, n_c)


def quotient_of_part(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(g*x + y) // (g*m) == x // m  when  0 <= y < g"""
    found = _small_part(a, n, known)
    return None if found is None else floordiv(found[1], split_multiple(n, found[0])[0], known)


def remainder_of_part(a: IntLike, n: IntLike, known: KnownRanges) -> IntLike | None:
    """(g*x + y) % (g*m) == g * (x % m) + y  when  0 <= y < g"""
    found = _small_part(a, n, known)
    if found is None:
        return None
    g, x, y = found
    return mod(x, split_multiple(n, g)[0], known) * g + y


FLOORDIV_RULES: tuple[Rule, ...] = (
    quotient_in_range,
    quotient_of_content,
    quotient_of_common_factor,
    quotient_of_quotient,
    quotient_of_remainder,
    quotient_of_part,
)
MOD_RULES: tuple[Rule, ...] = (
    remainder_in_range,
    remainder_of_content,
    remainder_of_common_factor,
    remainder_of_remainder,
    remainder_of_residue,
    remainder_of_quotient,
    remainder_of_part,
)


def _check_divisor(a: IntLike, n: IntLike, sign: str) -> None:
    if isinstance(n, int) and n == 0:
        raise DivisionByZeroError(f"({a}) {sign} 0: the divisor is zero")


def floordiv(a: IntLike, n: IntLike, known: KnownRanges = OWN) -> IntLike:
    """a // n, rounded down as in Python. Raises DivisionByZeroError when n is the constant 0."""
    if isinstance(n, int):
        _check_divisor(a, n, "//")
        if isinstance(a, int):
            return a // n
        if n == 1:
            return a
        if n < 0:  # a // -n == -a // n
            return floordiv(-a, -n, known)
    elif a is n:
        return 1
    # (q*n + r) // n == q + r // n
    quotient, rest = split_multiple(a, n)
    if isinstance(rest, int) and rest == 0:
        return quotient
    for rule in FLOORDIV_RULES:
        found = rule(rest, n, known)
        if found is not None:
            return quotient + found
    return quotient + make_fn("floordiv", (rest, n))


def mod(a: IntLike, n: IntLike, known: KnownRanges = OWN) -> IntLike:
    """a % n with the sign of n, as in Python. Raises DivisionByZeroError when n is the constant 0."""
    if isinstance(n, int):
        _check_divisor(a, n, "%")
        if isinstance(a, int):
            return a % n
        if n == 1:
            return 0
        if n < 0:  # a % -n == -(-a % n)
            return -mod(-a, -n, known)
    # (q*n + r) % n == r % n
    _quotient, rest = split_multiple(a, n)
    if isinstance(rest, int) and rest == 0:
        return 0
    for rule in MOD_RULES:
        found = rule(rest, n, known)
        if found is not None:
            return found
    return make_fn("mod", (rest, n))


# -- minimum, maximum, selection, power, shifts -----------------------------------------------------------------------


def _flatten(op: str, args: tuple[IntLike, ...]) -> list[IntLike]:
    flat: dict[IntLike, None] = {}
    for arg in args:
        if isinstance(arg, Fn) and arg.op == op:
            flat.update(dict.fromkeys(arg.args))
        else:
            flat[arg] = None
    return list(flat)


def _extremum(op: str, args: tuple[IntLike, ...], known: KnownRanges) -> IntLike:
    """min(a, b) == a  when  a <= b;  max(a, b) == b  when  a <= b;  nested ones are flattened, constants folded"""
    if not args:
        raise UsageError(f"{op}imum: at least one argument is needed")
    _check_integers(f"{op}imum", *args)
    pick = min if op == "min" else max
    flat = _flatten(op, args)
    constants = [arg for arg in flat if isinstance(arg, int)]
    kept: list[IntLike] = [pick(constants)] if constants else []
    for arg in flat:
        if isinstance(arg, int):
            continue
        if any(_no_better(op, arg, other, known) for other in kept):
            continue
        kept = [other for other in kept if not _no_better(op, other, arg, known)]
        kept.append(arg)
    if len(kept) == 1:
        return kept[0]
    return make_fn(op, tuple(sorted(kept, key=lambda e: e.order if isinstance(e, Expr) else (0, e))))


def _no_better(op: str, a: IntLike, b: IntLike, known: KnownRanges) -> bool:
    """Whether `a` never wins against `b`: a >= b for min, a <= b for max."""
    if op == "max":
        a, b = b, a
    if known.lower(a) >= known.upper(b):
        return True
    # Unrelated arguments have nothing more to compare, and there may be thousands of pairs.
    related = known.symbolic or (
        isinstance(a, Expr) and isinstance(b, Expr) and not a.free_symbols.isdisjoint(b.free_symbols)
    )
    return bool(related) and known.lower(a - b) >= 0


def _check_integers(what: str, *values: object) -> None:
    for value in values:
        if not isinstance(value, (int, Expr)):
            raise UsageError(f"{what}: expected ints or Exprs, got {type(value).__name__} {value!r}")


def minimum(*args: IntLike) -> IntLike:
    """The least of the arguments."""
    return _extremum("min", args, OWN)


def maximum(*args: IntLike) -> IntLike:
    """The greatest of the arguments."""
    return _extremum("max", args, OWN)


def where(condition: BoolLike, a: IntLike, b: IntLike) -> IntLike:
    """`a` where the condition holds, else `b`."""
    if isinstance(condition, bool):
        return a if condition else b
    if not isinstance(condition, BoolExpr):
        raise UsageError(f"where: the condition must be a BoolExpr or bool, got {condition!r}")
    _check_integers("where", a, b)
    return a if a is b or (isinstance(a, int) and a == b) else make_fn("where", (condition, a, b))


def integer_power(base: int, exponent: int) -> int:
    """Return base ** exponent of plain ints. Raises SizeOverflowError when the result would be too long to compute."""
    _check_count(exponent, f"{base} ** {exponent}")
    if exponent > 1 and base.bit_length() * exponent > MAX_BITS and base not in (-1, 0, 1):
        raise SizeOverflowError(f"{base} ** {exponent} does not fit in the 64 bits of a size; use a smaller exponent")
    return base**exponent


def integer_product(a: int, b: int) -> int:
    """Return a * b of plain ints. Raises SizeOverflowError as `integer_power` does."""
    if a.bit_length() + b.bit_length() > MAX_BITS:
        raise SizeOverflowError("a product does not fit in the 64 bits of a size; use smaller factors")
    return a * b


def integer_shift(a: int, n: int) -> int:
    """Return a << n of plain ints. Raises SizeOverflowError as `integer_power` does."""
    _check_count(n, f"{a} << {n}")
    if a and n > MAX_BITS:
        raise SizeOverflowError(f"{a} << {n} does not fit in the 64 bits of a size; use a smaller shift count")
    return a << n


def integer_shift_right(a: int, n: int) -> int:
    """a >> n of plain ints."""
    _check_count(n, f"{a} >> {n}")
    return a >> n


def _check_count(n: IntLike, what: str) -> None:
    if isinstance(n, int) and n < 0:
        raise NegativeCountError(f"{what}: a negative count gives no integer; divide by a power instead")


def power(base: IntLike, exponent: IntLike) -> IntLike:
    """Return base ** exponent for exponent >= 0. Constant exponents up to 16 are multiplied out; others give an atom."""
    if isinstance(exponent, int):
        _check_count(exponent, f"({base}) ** {exponent}")
        if isinstance(base, int):
            return integer_power(base, exponent)
        if exponent <= 16:
            result: IntLike = 1
            for _ in range(exponent):
                result = result * base
            return result
    elif isinstance(base, int) and base == 1:
        return 1
    return make_fn("pow", (base, exponent))


def shift_left(a: IntLike, n: IntLike) -> IntLike:
    """a << n == a * 2**n"""
    if isinstance(n, int):
        _check_count(n, f"({a}) << {n}")
        return a * integer_shift(1, n)
    return 0 if isinstance(a, int) and a == 0 else make_fn("shl", (a, n))


def shift_right(a: IntLike, n: IntLike) -> IntLike:
    """a >> n == a // 2**n"""
    if isinstance(n, int):
        _check_count(n, f"({a}) >> {n}")
        return floordiv(a, integer_shift(1, n))
    return 0 if isinstance(a, int) and a == 0 else make_fn("shr", (a, n))


def ceildiv(a: IntLike, n: IntLike) -> IntLike:
    """a / n rounded up:  (a + n - 1) // n  for n > 0, else -(-a // n)"""
    _check_integers("ceildiv", a, n)
    if isinstance(n, int) and isinstance(a, int):
        _check_divisor(a, n, "/")
        return -(-a // n)
    if OWN.lower(n) >= 1:
        return floordiv(a + n - 1, n)
    return -floordiv(-a, n)


def exactdiv(a: IntLike, n: IntLike) -> IntLike:
    """Return a / n where n divides a. Raises UsageError where n is known not to divide a."""
    _check_integers("exactdiv", a, n)
    remainder = mod(a, n)
    if OWN.lower(remainder) > 0 or OWN.upper(remainder) < 0:
        raise UsageError(f"exactdiv: {n} does not divide {a}: the remainder is {remainder}")
    return floordiv(a, n)


@lru_cache(_CACHE_SIZE)
def _own_floordiv(a: IntLike, n: IntLike) -> IntLike:
    return floordiv(a, n)


@lru_cache(_CACHE_SIZE)
def _own_mod(a: IntLike, n: IntLike) -> IntLike:
    return mod(a, n)


CONSTRUCT.update({
    "floordiv": _own_floordiv, "mod": _own_mod, "pow": power, "shl": shift_left, "shr": shift_right,
    "min": minimum, "max": maximum, "where": where,
})  # fmt: skip
