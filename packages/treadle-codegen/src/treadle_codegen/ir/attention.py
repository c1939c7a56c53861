"""Attention as a loop: a sum of values whose weights are the softmax of scores, each of them a sum of products itself.

Axes are those of the result; the last reduce axis is that of the terms of a score, the others are those of keys:

    loop attention [i0:8, i1:320, i2:64] reduce [r0:320, r1:64]
      %0 = load q[20480*i0 + 64*i1 + r1] : bfloat16
      %1 = load k[20480*i0 + 64*r0 + r1] : bfloat16
      %2 = inner_dot %0 %1 : float32                      along r1
      %3 = const 0.125 : float32
      %4 = mul %2 %3 : float32
      %5 = load v[20480*i0 + 64*r0 + i2] : bfloat16
      %6 = reduce softmax_dot %4 %5 : float32             along r0
      %7 = cast %6 : bfloat16
      store y[20480*i0 + 64*i1 + i2] %7

What the scores become before their softmax stands between the two sums, point by point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from treadle_codegen.ir.loops import Axis, Loop
from treadle_codegen.ir.ops import ATTENTIONS, PRODUCTS
from treadle_codegen.ir.product import varies_along

MANY_ROWS = 128  # fill a program


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention in a loop: `position` of its reduction in the body, `inner` that of the scores' sums, and the role of each axis."""

    position: int
    inner: int
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    keys: tuple[Axis, ...]
    terms: Axis


def is_attention(loop: Loop) -> bool:
    """Whether the loop is an attention."""
    return any(instr.op == "reduce" and instr.attr in ATTENTIONS for instr in loop.body)


def multiplies_tiles(loop: Loop) -> bool:
    """Whether the loop is a matrix product (`ir.product`) or an attention."""
    return any(instr.op == "reduce" and (instr.attr in PRODUCTS or instr.attr in ATTENTIONS) for instr in loop.body)


def attention_of(loop: Loop) -> Attention | str:
    """The loop's attention, or why it is none."""
    reductions = [k for k, instr in enumerate(loop.body) if instr.op == "reduce"]
    inner = [k for k, instr in enumerate(loop.body) if instr.op == "inner_dot"]
    if len(reductions) != 1 or loop.body[reductions[0]].attr not in ATTENTIONS:
        return "an attention is the only reduction of its loop"
    if len(inner) != 1:
        return f"scores of {len(inner)} matrix products"
    if len(loop.reduce_axes) < 2:
        return "an attention has axes of keys and one of terms"
    *keys, terms = loop.reduce_axes
    scores, values = loop.body[reductions[0]].args
    left, right = [varies_along(loop, k) for k in loop.body[inner[0]].args]
    weights, summed = varies_along(loop, scores), varies_along(loop, values)
    known = {axis.symbol for axis in keys}
    if not (terms.symbol in left & right and known <= right and known <= summed):
        return "a value of an attention does not vary along its reduce axes"
    if not known.isdisjoint(left) or terms.symbol in summed:
        return "a value of an attention varies along the axes of another one"
    own = summed | right  # heads that share keys and values are rows, where few queries are
    batch = tuple([axis for axis in loop.axes if axis.symbol in weights & own])
    rows = tuple([axis for axis in loop.axes if axis.symbol not in own])
    columns = tuple([axis for axis in loop.axes if axis.symbol not in weights])
    if not rows or not columns or {*batch, *rows} & {*columns}:
        return "an attention without rows or columns"
    while len(rows) > 1 and _are_many(rows[1:]):
        batch, rows = (*batch, rows[0]), rows[1:]
    return Attention(reductions[0], inner[0], batch, rows, columns, tuple(keys), terms)


def _are_many(axes: tuple[Axis, ...]) -> bool:
    total = math.prod([axis.extent for axis in axes if isinstance(axis.extent, int)])
    return total >= MANY_ROWS or not all(isinstance(axis.extent, int) for axis in axes)


def why_not_attention(loop: Loop) -> str | None:
    """Why the loop is no valid attention, or None."""
    found = attention_of(loop)
    return found if isinstance(found, str) else None
