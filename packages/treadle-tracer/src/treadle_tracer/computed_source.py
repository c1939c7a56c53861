"""Sources that are computed from several others: `table[i]` at a position that differs from call to call, `d[key]`, `name.upper()`.

A guard computes them anew on every call, whatever the values at the other sources are, and before these are checked. So a function here
looks at the types of what it is given, and raises an ordinary exception for others: the guard does not hold then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treadle_shapes import evaluate, substitute
from treadle_shapes.expr import symbol

from .by_identity import IdentitySet
from .class_facts import own_item
from .source import Emitter, Identity, ItemSource, Path, Source

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
        super().__init__(
            None, (function.form if isinstance(function, (Expression, TupleOf)) else Identity(function), *operands)
        )

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


def is_computed(source: Source) -> bool:
    """Whether what is at a source was chosen by values of the call: it stands at, or below, a computed source."""
    return type(source.root) is ComputedSource


def is_computed_item(source: Source | None) -> bool:
    """Whether values of the call choose the item at a source, or the row of a table that it stands in (`table[i][0]`)."""
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, ComputedSource)


class Expression:
    """An expression of symbols as a function of their values, which are ints. `form`: equal for the same function, whose symbols have other
    names in another trace."""

    __slots__ = ("expr", "form", "symbols")

    def __init__(self, expr: Any, symbols: tuple[Any, ...]):
        self.expr, self.symbols = expr, symbols
        self.form = str(substitute(expr, {old: symbol(f"_{number}") for number, old in enumerate(symbols)}))

    def __call__(self, *values: Any) -> int:
        if not all(type(value) is int for value in values):
            raise TypeError
        return evaluate(self.expr, dict(zip(self.symbols, values, strict=True)))


_PLAIN = (str, int, float, bool, type(None))


def is_plain(value: Any) -> bool:
    """Whether it is a string, a number or None, or a tuple of such."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(is_plain, value)))


class OnPlainValues:
    """A pure function of strings, numbers and tuples of such. It refuses all else, which may run code of the program."""

    __slots__ = ("__name__", "function")

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__name__ = getattr(function, "__name__", "text")

    def __call__(self, *values: Any) -> Any:
        if not all(map(is_plain, values)):
            raise TypeError
        return self.function(*values)


# ---- keys of dicts

_KEY_TYPES = IdentitySet({int, str, float, bool, type(None), torch.dtype, torch.device})


def is_plain_key(key: Any) -> bool:
    """Whether no code of the program runs to hash a key and to compare it."""
    return type(key) in _KEY_TYPES or (type(key) is tuple and all(map(is_plain_key, key)))


class TupleOf:
    """A tuple as a function of those of its items that differ from call to call. template: (whether it differs, the constant) for each."""

    __slots__ = ("form", "template")

    def __init__(self, template: tuple[tuple[bool, Any], ...]):
        self.template = template
        self.form = ("tuple", *[(is_open, type(constant), constant) for is_open, constant in template])

    @property
    def __name__(self) -> str:
        return "tuple"

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        if not all(map(is_plain_key, values)):
            raise TypeError
        given = iter(values)
        return tuple([next(given) if is_open else constant for is_open, constant in self.template])


# ---- items


def dict_item(mapping: Any, key: Any) -> Any:
    """The item of a dict under a plain key."""
    if not isinstance(mapping, dict) or not is_plain_key(key):
        raise TypeError
    return own_item(mapping, key)


def has_key(mapping: Any, key: Any) -> bool:
    """Whether a dict has a plain key."""
    if not isinstance(mapping, dict) or not is_plain_key(key):
        raise TypeError
    return dict.__contains__(mapping, key)


def has_member(members: Any, member: Any) -> bool:
    """Whether a set has a member that is an int or a string."""
    if type(members) not in (set, frozenset) or type(member) not in (int, str):
        raise TypeError
    return member in members


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


def contains_text(container: str, key: str) -> str:
    """How the question is written whether a container has a key."""
    return f"({key} in {container})"
