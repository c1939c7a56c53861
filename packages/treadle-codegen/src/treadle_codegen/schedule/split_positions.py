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

from treadle_codegen.ir.loops import Axis, Instr, Load, Loop, Program, Store
from treadle_codegen.lower.indexing import axis_symbol, product
from treadle_codegen.schedule.partial_results import BEST, flat, lies_across, new_buffer, partial_loop
from treadle_codegen.schedule.row_results import beginning_with

_BEHIND = torch.iinfo(torch.int64).max


def split_position(program: Program, loop: Loop, parts: int) -> list[Loop]:
    """The loops that find the position which `loop`, an argmax or argmin over axes of known length, finds. Adds buffers to the program."""
    at = next(k for k, instr in enumerate(loop.body) if instr.op == "reduce")
    first_axis = lies_across(loop)  # neighbours in memory then stay neighbours among the workers
    partial = partial_loop(loop, parts, first_axis=first_axis)
    *before, position = partial.body
    dtype = before[position.args[0]].dtype
    kind = BEST[position.attr]
    shape = tuple([axis.extent for axis in partial.axes])
    best = new_buffer(program, loop, dtype, shape, "best")
    places = new_buffer(program, loop, torch.int64, shape, "places")
    own = tuple([axis.extent for axis in loop.axes])
    most = new_buffer(program, loop, dtype, own or (1,), "most")
    index = flat([axis.symbol for axis in partial.axes], shape)
    n = len(before)
    body = [
        *before,
        position,
        Instr("reduce", position.args, dtype, kind),
        Instr("store", (n,), torch.int64, Store(places.name, index)),
        Instr("store", (n + 1,), dtype, Store(best.name, index)),
    ]
    first = replace(partial, name=f"{loop.name}_parts", body=tuple(body))
    count = shape[0 if first_axis else -1]
    part = Axis(axis_symbol("r0", count), count)
    symbols = [axis.symbol for axis in loop.axes]
    stored = flat([part.symbol, *symbols] if first_axis else [*symbols, part.symbol], shape)
    second = replace(
        loop,
        name=f"{loop.name}_most",
        reduce_axes=(part,),
        body=(
            Instr("load", (), dtype, Load(best.name, stored)),
            Instr("reduce", (0,), dtype, kind),
            Instr("store", (1,), dtype, Store(most.name, flat(symbols, own))),
        ),
    )
    in_a_part = product([axis.extent for axis in partial.reduce_axes])
    start = [
        Instr("load", (), dtype, Load(best.name, stored)),
        Instr("load", (), dtype, Load(most.name, flat(symbols, own))),
        Instr("eq", (0, 1), torch.bool),
        Instr("load", (), torch.int64, Load(places.name, stored)),
        Instr("index", (), torch.int64, part.symbol * in_a_part),
        Instr("add", (3, 4), torch.int64),
        Instr("const", (), torch.int64, _BEHIND),
    ]
    chosen = 2
    if dtype.is_floating_point:
        start += [Instr("ne", (0, 0), torch.bool), Instr("ne", (1, 1), torch.bool)]
        start += [Instr("bitwise_and", (7, 8), torch.bool), Instr("bitwise_or", (2, 9), torch.bool)]
        chosen = 10
    start.append(Instr("where", (chosen, 5, 6), torch.int64))
    start.append(Instr("reduce", (len(start) - 1,), torch.int64, "min"))
    return [first, second, beginning_with(loop, at, start, (part,))]


__all__ = ["split_position"]
