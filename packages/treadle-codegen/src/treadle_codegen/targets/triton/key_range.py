"""Which keys a block of queries sees, where a mask of positions tells: blocks of keys outside are left out.

    score = where(q >= k, s, -inf)                       k <= the last query of the block
    score = where((q >= k) & (q - k < 256), s, -inf)     and k > the first query - 256

Keys outside have a weight of zero. Only a "safe" softmax leaves them out: products of zero with infinite values, which are NaN, are not
missed there (`scaled_dot_product_attention` and `flex_attention` leave them out in eager, too).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from treadle_codegen.ir.attention import Attention
from treadle_codegen.ir.loops import IntLike, Loop
from treadle_shapes.expr import Symbol, linear_coefficients

_NEGATED = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}


class Bound(NamedTuple):
    """The keys are at most (`is_upper`) or at least `value`, an expression in the query's symbol, in which it moves by `step`."""

    value: IntLike
    step: int
    is_upper: bool


def bounds_of_keys(loop: Loop, attention: Attention) -> list[Bound]:
    """What the mask says about the keys that a query sees; nothing where it says that in another form."""
    reduction = loop.body[attention.position]
    if reduction.attr != "safe_softmax_dot" or len(attention.keys) != 1 or len(attention.rows) != 1:
        return []
    key, row = attention.keys[0].symbol, attention.rows[0].symbol
    found = []
    for at_most in _masks(loop, reduction.args[0]):
        bound = _bound(at_most, key, row)
        if bound is not None:
            found.append(bound)
    return found


def _bound(at_most_zero: IntLike, key: Symbol, row: Symbol) -> Bound | None:
    linear = None if isinstance(at_most_zero, int) else linear_coefficients(at_most_zero, [key, row])
    if linear is None or linear[0].get(key) not in (1, -1):
        return None
    sign, step = linear[0][key], linear[0].get(row, 0)
    if not isinstance(step, int):
        return None
    rest = linear[1] + step * row
    return Bound(-sign * rest, -sign * step, sign == 1)  # type: ignore[operator]


def _masks(loop: Loop, position: int) -> Iterator[IntLike]:
    """Expressions that are positive only where the score is -inf."""
    instr = loop.body[position]
    if instr.op == "cast" and loop.body[instr.args[0]].dtype.is_floating_point:
        yield from _masks(loop, instr.args[0])
    elif instr.op == "where":
        condition, kept, other = instr.args
        if _is_minus_infinity(loop, other):
            yield from _conditions(loop, condition, holds=True)
            yield from _masks(loop, kept)
        elif _is_minus_infinity(loop, kept):
            yield from _conditions(loop, condition, holds=False)
            yield from _masks(loop, other)


def _is_minus_infinity(loop: Loop, position: int) -> bool:
    instr = loop.body[position]
    return instr.op == "const" and instr.attr == -math.inf


def _conditions(loop: Loop, position: int, *, holds: bool) -> Iterator[IntLike]:
    """Expressions that are at most 0 where the condition holds, or does not."""
    instr = loop.body[position]
    if instr.op == "bitwise_not":
        yield from _conditions(loop, instr.args[0], holds=not holds)
    elif instr.op == ("bitwise_and" if holds else "bitwise_or"):
        for arg in instr.args:
            yield from _conditions(loop, arg, holds=holds)
    elif instr.op == "where" and instr.dtype == torch.bool:
        branches = [loop.body[a] for a in instr.args[1:]]
        if all(b.op == "const" for b in branches) and branches[0].attr != branches[1].attr:
            yield from _conditions(loop, instr.args[0], holds=holds == branches[0].attr)
    elif instr.op in _NEGATED:
        left, right = [_integer(loop, a) for a in instr.args]
        if left is not None and right is not None:
            op = instr.op if holds else _NEGATED[instr.op]
            difference = left - right if op in ("le", "lt") else right - left
            yield difference + (op in ("lt", "gt"))


def _integer(loop: Loop, position: int) -> IntLike | None:
    """The value of an instruction as an expression of positions."""
    instr = loop.body[position]
    if instr.dtype not in (torch.int64, torch.int32):
        return None
    if instr.op in ("index", "const"):
        return instr.attr  # type: ignore[no-any-return]
    if instr.op not in ("add", "sub", "mul"):
        return None
    left, right = [_integer(loop, a) for a in instr.args]
    if left is None or right is None:
        return None
    return left + right if instr.op == "add" else left - right if instr.op == "sub" else left * right
