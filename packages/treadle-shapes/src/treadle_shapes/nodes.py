"""The node classes of integer and boolean expressions, and the polynomial arithmetic that keeps them in normal form.

An integer expression is a polynomial over *atoms* with integer coefficients, multiplied out:

    Sum      c + k1*m1 + k2*m2 ...     distinct monomials, non-zero coefficients, sorted
    Product  a1**e1 * a2**e2 ...       a monomial of more than one atom, or one atom with a power; sorted
    atoms    Symbol, Fn (floordiv, mod, min, max, where, ...)

Constants are plain ints: an operation whose result is constant returns an `int`. Nodes of equal structure are one object.
`CONSTRUCT` holds the operators other than + - *; the modules that define them fill it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias, Union

from treadle_shapes.errors import SizeOverflowError, UsageError
from treadle_shapes.intern import InternTable, Node
from treadle_shapes.ranges import Range

IntLike: TypeAlias = Union[int, "Expr"]
BoolLike: TypeAlias = Union[bool, "BoolExpr"]

#: constructors of operations that Python operators call and that modules above this one define
CONSTRUCT: dict[str, Callable[..., Any]] = {}

_CACHE_SIZE = 1 << 15
# A product of sums is multiplied out only up to this many terms (before like terms are added). Larger ones would take forever.
MAX_EXPANSION = 512
# Powers are multiplied out only up to this exponent.
MAX_POWER = 64
# Coefficients with more bits than this are refused, even in intermediate results.
MAX_BITS = 4096
_LARGEST = 1 << MAX_BITS
# Functions with a greater weight have a digest as sort key.
_HEAVY = 200
_NOTHING: frozenset[Symbol] = frozenset()
_by_order = attrgetter("order")


class Expr(Node):
    """An integer expression that is not a constant."""

    __slots__ = ()

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return find_free(self) if self._free is None else self._free

    def __add__(self, other: IntLike) -> IntLike:
        return _add(self, other) if isinstance(other, (Expr, int)) else NotImplemented

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> IntLike:
        return _sub(self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __rsub__(self, other: int) -> IntLike:
        return _add(_mul(self, -1), other) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: IntLike) -> IntLike:
        return _mul(self, other) if isinstance(other, (Expr, int)) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> IntLike:
        return _mul(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __floordiv__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["floordiv"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __rfloordiv__(self, other: int) -> IntLike:
        return CONSTRUCT["floordiv"](other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["mod"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __rmod__(self, other: int) -> IntLike:
        return CONSTRUCT["mod"](other, self) if isinstance(other, int) else NotImplemented

    def __pow__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["pow"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __rpow__(self, other: int) -> IntLike:
        return CONSTRUCT["pow"](other, self) if isinstance(other, int) else NotImplemented

    def __lshift__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["shl"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __rshift__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["shr"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __rlshift__(self, other: int) -> IntLike:
        return CONSTRUCT["shl"](other, self) if isinstance(other, int) else NotImplemented

    def __rrshift__(self, other: int) -> IntLike:
        return CONSTRUCT["shr"](other, self) if isinstance(other, int) else NotImplemented

    def __and__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["bitand"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __or__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["bitor"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __xor__(self, other: IntLike) -> IntLike:
        return CONSTRUCT["bitxor"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __abs__(self) -> IntLike:
        return CONSTRUCT["max"](self, _mul(self, -1))

    def __divmod__(self, other: IntLike) -> tuple[IntLike, IntLike]:
        return (self // other, self % other) if isinstance(other, (Expr, int)) else NotImplemented

    def __truediv__(self, other: Any) -> IntLike:
        raise UsageError(f"({self}) / ({other}) is no integer; use //, ceildiv or exactdiv")

    __rtruediv__ = __truediv__

    def __lt__(self, other: IntLike) -> BoolLike:
        return CONSTRUCT["lt"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __le__(self, other: IntLike) -> BoolLike:
        return CONSTRUCT["le"](self, other) if isinstance(other, (Expr, int)) else NotImplemented

    def __gt__(self, other: IntLike) -> BoolLike:
        return CONSTRUCT["lt"](other, self) if isinstance(other, (Expr, int)) else NotImplemented

    def __ge__(self, other: IntLike) -> BoolLike:
        return CONSTRUCT["le"](other, self) if isinstance(other, (Expr, int)) else NotImplemented

    def __bool__(self) -> bool:
        raise UsageError(f"the truth of {self} is not known; compare with Ne({self}, 0) and ask a ShapeEnv to decide")

    def __int__(self) -> int:
        raise UsageError(f"{self} is not a constant; use evaluate(expr, {{symbol: value}})")

    def __repr__(self) -> str:
        return CONSTRUCT["text"](self)


class Symbol(Expr):
    """A named integer unknown with lower <= value <= upper (None: unbounded). Equal name and bounds give the same object."""

    __slots__ = ("lower", "name", "upper")
    name: str
    lower: int | None
    upper: int | None

    @property
    def range(self) -> Range:
        return Range(self.lower, self.upper)

    def __reduce__(self) -> tuple:
        return symbol, (self.name, self.lower, self.upper)


class Sum(Expr):
    """const + sum(coefficient * monomial), see the module's docstring. `coefficients` must not be changed."""

    __slots__ = ("coefficients", "const")
    coefficients: dict[Expr, int]
    const: int

    def __getattr__(self, name: str) -> tuple:
        # Sums are seldom sorted (monomials are), so their key is made on demand.
        if name != "order":
            raise AttributeError(name)
        self.order = (4, tuple([(m.order, c) for m, c in self.coefficients.items()]), self.const)
        return self.order

    def __reduce__(self) -> tuple:
        return make_sum, (dict(self.coefficients), self.const)


class Product(Expr):
    """Product of atom ** power, powers >= 1. `powers` must not be changed."""

    __slots__ = ("powers",)
    powers: dict[Expr, int]

    def __reduce__(self) -> tuple:
        return make_product, (dict(self.powers),)


class Fn(Expr):
    """An atom: a function `op` of `args`, which are ints, Exprs or (for where) a BoolExpr."""

    __slots__ = ("args", "depth", "op", "weight")
    op: str
    args: tuple
    depth: int
    """Nesting depth of functions. Work that grows with every level stops at some depth."""
    weight: int
    """Number of nodes in the printed text. A shared node counts once per occurrence."""

    def __reduce__(self) -> tuple:
        return make_fn, (self.op, self.args)


class BoolExpr(Node):
    """A condition: `op` is le0, eq0, ne0 (of one polynomial), and, or, not, or a comparison of floats."""

    __slots__ = ("args", "op", "shape")
    op: str
    args: tuple
    shape: tuple[int, int] | None
    """(depth, weight) as in `Fn`, for a condition that consists of conditions."""

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return find_free(self) if self._free is None else self._free

    def __and__(self, other: BoolLike) -> BoolLike:
        return CONSTRUCT["and"](self, other) if isinstance(other, (BoolExpr, bool)) else NotImplemented

    __rand__ = __and__

    def __or__(self, other: BoolLike) -> BoolLike:
        return CONSTRUCT["or"](self, other) if isinstance(other, (BoolExpr, bool)) else NotImplemented

    __ror__ = __or__

    def __invert__(self) -> BoolLike:
        return CONSTRUCT["not"](self)

    def __bool__(self) -> bool:
        raise UsageError(f"whether {self} holds is not known; ask ShapeEnv.decide, or prove, or evaluate with values")

    def __repr__(self) -> str:
        return CONSTRUCT["text"](self)

    def __reduce__(self) -> tuple:
        return make_bool, (self.op, self.args)


def children(node: Node) -> Iterable[Any]:
    """The nodes directly below a node."""
    if isinstance(node, Sum):
        return node.coefficients
    if isinstance(node, Product):
        return node.powers
    if isinstance(node, Symbol):
        return ()
    return [arg for arg in getattr(node, "args", ()) if isinstance(arg, Node)]


def computed_sizes(node: Any) -> list[Fn]:
    """The functions in an expression or condition that may be sizes (quotients, minima and maxima), each once, innermost first."""
    found: dict[Fn, None] = {}

    def walk(node: Any) -> None:
        for child in children(node):
            walk(child)
        if isinstance(node, Fn) and node.op in ("floordiv", "min", "max"):
            found[node] = None

    if isinstance(node, Node):
        walk(node)
    return list(found)


def is_polynomial(node: IntLike) -> bool:
    """Whether an expression consists of symbols, constants, +, - and *."""
    return not isinstance(node, Fn) and all(map(is_polynomial, children(node))) if isinstance(node, Expr) else True


def find_free(node: Any) -> frozenset[Symbol]:
    """Return the symbols below a node. Works from the leaves up without recursion, so that any depth is possible."""
    stack = [node]
    while stack:
        below = children(stack[-1])
        missing = [child for child in below if child._free is None]
        if missing:
            stack += missing
        else:
            stack.pop()._free = frozenset().union(*[child._free for child in below])
    return node._free


def free_symbols(value: Any) -> frozenset[Symbol]:
    """The symbols of an expression or condition; none for a number."""
    return value.free_symbols if isinstance(value, Node) else _NOTHING


_symbols: InternTable[Symbol] = InternTable()
_sums: InternTable[Sum] = InternTable()
_products: InternTable[Product] = InternTable()
_fns: InternTable[Fn] = InternTable()
_bools: InternTable[BoolExpr] = InternTable()


def _blank(cls: type, order: tuple) -> Any:
    node = object.__new__(cls)
    node._free = node._own = None
    node.order = order
    return node


def symbol(name: str, lower: int | None = 0, upper: int | None = None) -> Symbol:
    """Return the symbol with this name and range. The same name with another range is another symbol."""
    key = (name, lower, upper)
    node = _symbols.get(key)
    if node is None:
        if not isinstance(name, str) or not name:
            raise UsageError(f"symbol: name must be a non-empty string, got {name!r}")
        for end in (lower, upper):
            if end is not None and not isinstance(end, int):
                raise UsageError(f"symbol {name}: bounds must be ints or None, got {end!r}")
        if lower is not None and upper is not None and lower > upper:
            raise UsageError(f"symbol {name}: the range [{lower}, {upper}] is empty")
        # None sorts before every bound.
        node = _blank(Symbol, (1, name, lower is not None, lower or 0, upper is not None, upper or 0))
        node.name, node.lower, node.upper = name, lower, upper
        node._free = frozenset((node,))
        node = _symbols.add(key, node)
    return node


def order_of(value: Any) -> tuple:
    """Sort key of a node or a Python number."""
    return value.order if isinstance(value, Node) else (0, value)


def make_sum(coefficients: dict[Expr, int], const: int) -> IntLike:
    """Return the normal form of const + sum(c * m). Takes ownership of `coefficients`, which must hold no zeros and no Sum as key."""
    if not coefficients:
        return const
    if len(coefficients) == 1:
        ((monomial, coefficient),) = coefficients.items()
        if coefficient == 1 and const == 0:
            return monomial
        key = (const, monomial, coefficient)
    else:
        monomials = sorted(coefficients, key=_by_order)
        coefficients = {m: coefficients[m] for m in monomials}
        key = (const, *monomials, *coefficients.values())
    ref = _sums.refs.get(key)
    if ref is not None and (node := ref()) is not None:
        return node
    node = object.__new__(Sum)
    node._free = node._own = None
    node.coefficients, node.const = coefficients, const
    return _sums.add(key, node)


def make_product(powers: dict[Expr, int]) -> IntLike:
    """Return the monomial with these atoms and powers. Takes ownership of `powers`, which must hold no zeros."""
    if not powers:
        return 1
    if len(powers) == 1:
        ((atom, power),) = powers.items()
        if power == 1:
            return atom
        key = (atom, power)
    else:
        atoms = sorted(powers, key=_by_order)
        powers = {a: powers[a] for a in atoms}
        key = (*atoms, *powers.values())
    ref = _products.refs.get(key)
    if ref is not None and (node := ref()) is not None:
        return node
    node = _blank(Product, (2, tuple([(a.order, p) for a, p in powers.items()])))
    node.powers = powers
    return _products.add(key, node)


def _digest(order: tuple) -> tuple:
    """Return a sort key of fixed length; `order` grows with every level. `hash` would differ between processes."""
    from hashlib import blake2b

    return ((9, int.from_bytes(blake2b(repr(order).encode(), digest_size=8).digest(), "big")),)


def _shape_of(parts: Iterable[Any]) -> tuple[int, int]:
    """Return (depth, weight) of a node with these children, see `Fn`."""
    depth = weight = 0
    for part in parts:
        weight += 1
        if isinstance(part, Fn):
            depth, weight = max(depth, part.depth), weight + part.weight
        elif isinstance(part, BoolExpr) and part.shape is not None:
            depth, weight = max(depth, part.shape[0]), weight + part.shape[1]
        elif isinstance(part, Node) and not isinstance(part, Symbol):
            inner, more = _shape_of(children(part))
            depth, weight = max(depth, inner), weight + more
    return depth, min(weight, 1 << 30)


def weight_of(e: Any) -> int:
    """The number of parts of an integer expression, written out; those that stand in several places count in each. At most 2**30."""
    return _shape_of((e,))[1]


def make_fn(op: str, args: tuple) -> Fn:
    """The atom op(*args), with no simplification."""
    key = (op, *args)
    node = _fns.get(key)
    if node is None:
        depth, weight = _shape_of(args)
        below = tuple([order_of(arg) for arg in args])
        node = _blank(Fn, (3, op, len(args), below if weight <= _HEAVY else _digest(below)))
        node.op, node.args, node.depth, node.weight = op, args, depth + 1, weight + 1
        node = _fns.add(key, node)
    return node


def make_bool(op: str, args: tuple) -> BoolExpr:
    """The condition op(*args), with no simplification."""
    key = (op, *args)
    node = _bools.get(key)
    if node is None:
        below = tuple([order_of(arg) for arg in args])
        shape = _shape_of(args) if op in ("and", "or", "not") else None
        if shape is not None and shape[1] > _HEAVY:
            below = _digest(below)
        node = _blank(BoolExpr, (5, op, len(args), below))
        node.op, node.args, node.shape = op, args, shape
        node = _bools.add(key, node)
    return node


def as_terms(e: IntLike) -> tuple[dict[Expr, int], int]:
    """Return (coefficients by monomial, constant) of any expression. The dict must not be changed."""
    if isinstance(e, Sum):
        return e.coefficients, e.const
    if isinstance(e, Expr):
        return {e: 1}, 0
    return {}, int(e)


def as_powers(monomial: Expr) -> dict[Expr, int]:
    """Return {atom: power} of a monomial. The dict must not be changed."""
    return monomial.powers if isinstance(monomial, Product) else {monomial: 1}


@lru_cache(_CACHE_SIZE)
def _add(a: Expr, b: IntLike) -> IntLike:
    if not isinstance(b, Expr):
        if b == 0:
            return a
        if isinstance(a, Sum):
            return make_sum(a.coefficients, a.const + int(b))
        return make_sum({a: 1}, int(b))
    const = 0
    if isinstance(a, Sum):
        total, const = a.coefficients.copy(), a.const
    else:
        total = {a: 1}
    if isinstance(b, Sum):
        terms, const = b.coefficients.items(), const + b.const
    else:
        terms = ((b, 1),)
    for monomial, coefficient in terms:
        coefficient += total.get(monomial, 0)
        if coefficient:
            total[monomial] = coefficient
        else:
            del total[monomial]
    return make_sum(total, const)


@lru_cache(_CACHE_SIZE)
def _sub(a: Expr, b: IntLike) -> IntLike:
    return _add(a, -b if isinstance(b, int) else _mul(b, -1))


def _times(x: Expr, y: Expr) -> Expr:
    """Product of two monomials."""
    powers = dict(as_powers(x))
    for atom, power in as_powers(y).items():
        powers[atom] = power = powers.get(atom, 0) + power
        if power > MAX_POWER:
            return make_fn("product", (x, y) if x.order <= y.order else (y, x))
    product = make_product(powers)
    assert isinstance(product, Expr)
    return product


@lru_cache(_CACHE_SIZE)
def _mul(a: Expr, b: IntLike) -> IntLike:
    if not isinstance(b, Expr):
        if b == 0:
            return 0
        if b == 1:
            return a
        if isinstance(a, Sum):
            return make_sum({m: c * b for m, c in a.coefficients.items()}, a.const * b)
        return make_sum({a: int(b)}, 0)
    if not isinstance(a, Sum) and not isinstance(b, Sum):
        return _times(a, b)
    (left, left_const), (right, right_const) = as_terms(a), as_terms(b)
    if len(left) * len(right) > MAX_EXPANSION:
        return make_fn("product", (a, b) if a.order <= b.order else (b, a))
    total: dict[Expr, int] = {}
    for x, c in left.items():
        for y, d in right.items():
            xy = _times(x, y)
            total[xy] = total.get(xy, 0) + c * d
        total[x] = total.get(x, 0) + c * right_const
    for y, d in right.items():
        total[y] = total.get(y, 0) + d * left_const
    const = left_const * right_const
    if any(not -_LARGEST < c < _LARGEST for c in total.values()) or not -_LARGEST < const < _LARGEST:
        names = ", ".join(sorted([s.name for s in a.free_symbols | b.free_symbols]))
        raise SizeOverflowError(
            f"a product of {names} has coefficients that do not fit in 64 bits; use smaller factors"
        )
    return make_sum({m: c for m, c in total.items() if c}, const)


def add(*terms: IntLike) -> IntLike:
    """Sum of any number of terms, merged at once."""
    const, total = 0, {}
    for term in terms:
        coefficients, c = as_terms(term)
        const += c
        for monomial, coefficient in coefficients.items():
            total[monomial] = total.get(monomial, 0) + coefficient
    return make_sum({m: c for m, c in total.items() if c}, const)
