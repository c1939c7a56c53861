"""Ints and strings that differ from call to call, and tuples of them, as keys and positions.

    def f(x, step):
        history[step] = x.mean()            # another key on every call
        grid = grids[x.shape[-2:]]
        return x * scales[step % 4] + grid

Such a key stays open: the trace asks only whether an outside dict has it, and whether it equals the other keys that the trace uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


class VaryingKind(NamedTuple):
    """One kind of Value that varies.

    place     (tx, value) -> where a call finds the int, the string or the tuple; None where only the graph knows it, or it is none of these
    hint      (tx, value) -> what the traced call has there
    may_vary  (value) -> whether this Value of the class varies
    """

    place: Callable[[TraceContext, Any], Source | None]
    hint: Callable[[TraceContext, Any], Any]
    may_vary: Callable[[Any], bool] = lambda value: True


KINDS: dict[type[Value], VaryingKind] = {}
"""The kinds by class of Value. The module of a class adds it."""


class VaryingKey:
    """What a dict of the trace holds in place of the hash key of a key that varies. It equals itself only."""

    __slots__ = ()


def varies(value: Value) -> bool:
    """Whether a value may be an int or a string that differs from call to call, or a tuple that holds one."""
    kind = KINDS.get(type(value))
    return kind is not None and kind.may_vary(value)


def place_of(tx: TraceContext, value: Value) -> Source | None:
    """Where a call finds the int, the string or the tuple, None where the value does not vary, or not so that a guard can follow it."""
    kind = KINDS.get(type(value))
    return None if kind is None else kind.place(tx, value)


def hint_of(tx: TraceContext, value: Value) -> Any:
    """The int, the string or the tuple of the traced call, which is not guarded."""
    return KINDS[type(value)].hint(tx, value)


def operand_of(tx: TraceContext, value: Value) -> Any:
    """The place of a value that varies, the constant of one that does not. Raises NotConstant."""
    place = place_of(tx, value)
    return value.constant() if place is None else place


def are_equal(tx: TraceContext, a: Value, b: Value) -> bool | None:
    """Whether two keys are equal, one of which varies; what is found is guarded. None where the class of one may say what is equal."""
    kinds = (a.python_type(), b.python_type())
    if all(kind in _NUMBERS for kind in kinds) or kinds == (str, str):
        return tx.compare("==", a, b).truth(tx)
    if all(kind in _TUPLES for kind in kinds):
        return _are_equal_tuples(tx, a, b)
    return False if all(kind in _NUMBERS or kind in _NEVER_NUMBERS for kind in kinds) else None


def _are_equal_tuples(tx: TraceContext, a: Value, b: Value) -> bool | None:
    one, other = a.unpack(tx), b.unpack(tx)
    if len(one) != len(other):
        return False
    pairs = [(varies(x) or varies(y), x, y) for x, y in zip(one, other, strict=True)]
    # Items that do not vary come first: where they differ, nothing is guarded.
    if not all(_is_one_key(x.hash_key(tx), y.hash_key(tx)) for is_open, x, y in pairs if not is_open):
        return False
    for is_open, x, y in pairs:
        equal = are_equal(tx, x, y) if is_open else True
        if not equal:
            return equal
    return True


def _is_one_key(a: Any, b: Any) -> bool:
    """Whether a dict takes two hash keys for one."""
    return a is b or (hash(a) == hash(b) and bool(a == b))


_NUMBERS = (int, bool, float)
_TUPLES = (tuple, torch.Size)
_NEVER_NUMBERS = (str, bytes, *_TUPLES, type(None))
