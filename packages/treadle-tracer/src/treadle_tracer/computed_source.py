"""Sources that are computed from several others: `table[i]` at a position that differs from call to call, `d[key]`, `name.upper()`.

A guard computes them anew on every call, whatever the values at the other sources are, and before these are checked. So a function here
looks at the types of what it is given, and raises an ordinary exception for others: the guard does not hold then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle_shapes import evaluate

from .source import Emitter, Path, Source, _hashable, _same_key

Operand = Any  # a Source, or a constant: str, int, float, bytes, bool, None


class ComputedSource(Source):
    """`function(*operands)` for a pure function, a constant of the code. `write(*texts)` gives the text, by default that of a call."""

    __slots__ = ("function", "operands", "write")
    base: None

    def __init__(
        self, function: Callable[..., Any], operands: tuple[Operand, ...], write: Callable[..., str] | None = None
    ):
        self.function = function
        self.operands = operands
        self.write = write
        super().__init__(None, (id(function), *map(_hash_of, operands)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ComputedSource) or self._hash != other._hash or self.function is not other.function:
            return False
        pairs = zip(self.operands, other.operands, strict=False)
        return len(self.operands) == len(other.operands) and all(map(_same_operand, pairs))

    def _write(self) -> str:
        texts = [operand.text if isinstance(operand, Source) else repr(operand) for operand in self.operands]
        if self.write is not None:
            return self.write(*texts)
        return f"{getattr(self.function, '__name__', self.function)}({', '.join(texts)})"

    def _accessors(self) -> Path:
        paths = tuple(operand.path for operand in self.operands if isinstance(operand, Source))
        given = len(paths) == len(self.operands)
        return (("computed", (self.function if given else _Filled(self.function, self.operands), paths)),)

    def emit(self, cb: Emitter) -> None:
        cb.push_null()
        cb.load_const(self.function)
        for operand in self.operands:
            if isinstance(operand, Source):
                operand.emit(cb)
            else:
                cb.load_const(operand)
        cb.call(len(self.operands))


class _Filled:
    """The function with the constants among its operands in their places."""

    __slots__ = ("constants", "function")

    def __init__(self, function: Callable[..., Any], operands: tuple[Operand, ...]):
        self.function = function
        self.constants = tuple((not isinstance(operand, Source), operand) for operand in operands)

    def __call__(self, *values: Any) -> Any:
        given = iter(values)
        return self.function(*[operand if is_constant else next(given) for is_constant, operand in self.constants])


def _hash_of(operand: Operand) -> Any:
    return operand if isinstance(operand, Source) else _hashable(operand)


def _same_operand(pair: tuple[Operand, Operand]) -> bool:
    a, b = pair
    return a == b if isinstance(a, Source) and isinstance(b, Source) else _same_key(a, b)


def is_computed(source: Source) -> bool:
    """Whether what is at a source was chosen by values of the call: it stands at, or below, a computed source."""
    root: Source = source
    while root.base is not None:
        root = root.base
    return type(root) is ComputedSource


class Expression:
    """An expression of symbols as a function of their values, which are ints."""

    __slots__ = ("expr", "symbols")

    def __init__(self, expr: Any, symbols: tuple[Any, ...]):
        self.expr, self.symbols = expr, symbols

    def __call__(self, *values: Any) -> int:
        if not all(type(value) is int for value in values):
            raise TypeError
        return evaluate(self.expr, dict(zip(self.symbols, values, strict=True)))


_PLAIN = (str, int, float, bool, type(None))


class OnPlainValues:
    """A pure function of strings and numbers. It refuses all else, which may run code of the program."""

    __slots__ = ("__name__", "function")

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__name__ = getattr(function, "__name__", "text")

    def __call__(self, *values: Any) -> Any:
        if not all(type(value) in _PLAIN for value in values):
            raise TypeError
        return self.function(*values)


# ---- items


def dict_item(mapping: Any, key: Any) -> Any:
    """The item of a dict under a key that is an int or a string. `dict.__getitem__` would ask `__missing__` of a subclass."""
    if not isinstance(mapping, dict) or type(key) not in (int, str):
        raise TypeError
    found = dict.get(mapping, key, _ABSENT)
    if found is _ABSENT:
        raise KeyError
    return found


_ABSENT = object()


def list_item(items: Any, index: Any) -> Any:
    """`list.__getitem__(items, index)`."""
    if not isinstance(items, list) or type(index) is not int:
        raise TypeError
    return list.__getitem__(items, index)


def tuple_item(items: Any, index: Any) -> Any:
    """`tuple.__getitem__(items, index)`."""
    if not isinstance(items, tuple) or type(index) is not int:
        raise TypeError
    return tuple.__getitem__(items, index)


def item_text(container: str, key: str) -> str:
    """How items are written."""
    return f"{container}[{key}]"
