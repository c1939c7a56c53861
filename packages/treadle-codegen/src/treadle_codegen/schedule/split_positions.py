"""Positions of maxima and minima from those of parts.

before   loop [] reduce [r0:1000000]    %0 = load x[r0];  %1 = reduce argmax %0;  store y[0] %1
after    loop [i0:256] reduce [r0:3907] %0 = load x[3907*i0 + r0];  store best[i0] (reduce max %0);  store place[i0] (reduce argmax %0)
         loop [] reduce [r0:256]        store most[0] (reduce max (load best[r0]))
         loop [] reduce [r0:256]        the least of 3907*r0 + place[r0] where best[r0] == most[0]

NaN is the best of all, the first one before the others, so that parts with NaN are those to choose from where the best is NaN.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from treadle_codegen.ir.loops import Instr, IntLike, Load, Loop, Program, Store
from treadle_codegen.ir.ops import POSITIONS
from treadle_codegen.lower.indexing import product
from treadle_codegen.schedule.partial_results import flat, lies_across, new_buffer, partial_loop, walk_over_parts
from treadle_codegen.schedule.row_results import beginning_with

_BEHIND = torch.iinfo(torch.int64).max


def split_position(program: Program, loop: Loop, parts: int) -> list[Loop]:
    """The loops that find the position which `loop`, an argmax or argmin over axes of known length, finds. Adds buffers to the program."""
    at = next(k for k, instr in enumerate(loop.body) if instr.op == "reduce")
    first_axis = lies_across(loop)  # neighbours in memory then stay neighbours among the workers
    partial = partial_loop(loop, parts, first_axis=first_axis)
    position = partial.body[-1]
    dtype, kind = partial.body[position.args[0]].dtype, POSITIONS[position.attr]
    shape, own = (tuple([axis.extent for axis in axes]) for axes in (partial.axes, loop.axes))
    best = new_buffer(program, loop, dtype, shape, "best")
    places = new_buffer(program, loop, torch.int64, shape, "places")
    most = new_buffer(program, loop, dtype, own or (1,), "most")
    part, stored = walk_over_parts(loop, shape, first_axis=first_axis)
    value = Instr("load", (), dtype, Load(best.name, stored))
    place = Instr("load", (), torch.int64, Load(places.name, stored))
    result = flat([axis.symbol for axis in loop.axes], own)
    reduction = Instr("reduce", (0,), dtype, kind)
    store = Instr("store", (1,), dtype, Store(most.name, result))
    length = product([axis.extent for axis in partial.reduce_axes])
    start = _first_of_the_best(value, Instr("load", (), dtype, Load(most.name, result)), place, part.symbol * length)
    return [
        _with_both(partial, kind, best.name, places.name),
        replace(loop, name=f"{loop.name}_most", reduce_axes=(part,), body=(value, reduction, store)),
        beginning_with(loop, at, start, (part,)),
    ]


def _with_both(partial: Loop, kind: str, best: str, places: str) -> Loop:
    """The loop of the parts, which ends with the reduction to a position, with the reduction to the value there; both are stored."""
    position, n = partial.body[-1], len(partial.body)
    dtype = partial.body[position.args[0]].dtype
    index = flat([axis.symbol for axis in partial.axes], [axis.extent for axis in partial.axes])
    end = (
        replace(position, dtype=dtype, attr=kind),
        Instr("store", (n - 1,), torch.int64, Store(places, index)),
        Instr("store", (n,), dtype, Store(best, index)),
    )
    return replace(partial, name=f"{partial.name}_parts", body=(*partial.body, *end))


def _first_of_the_best(value: Instr, most: Instr, place: Instr, begin: IntLike) -> list[Instr]:
    """The least position among the parts whose best `value` is that of all, `most`. `begin`: where the part's positions begin."""
    body = [
        *(value, most, place),
        Instr("index", (), torch.int64, begin),
        Instr("add", (2, 3), torch.int64),
        Instr("const", (), torch.int64, _BEHIND),
        Instr("eq", (0, 1), torch.bool),
    ]
    if value.dtype.is_floating_point:
        body += [Instr("ne", (0, 0), torch.bool), Instr("ne", (1, 1), torch.bool)]
        body += [Instr("bitwise_and", (7, 8), torch.bool), Instr("bitwise_or", (6, 9), torch.bool)]
    body.append(Instr("where", (len(body) - 1, 4, 5), torch.int64))
    return [*body, Instr("reduce", (len(body) - 1,), torch.int64, "min")]


__all__ = ["split_position"]
