"""Softmax of long rows in one walk instead of two: the maximum and the sum of exponentials below it, both at once.

    section 0:  m = max(x)                     for steps of the row:  n = max(m, x)
    section 1:  s = sum(exp(x - m))      ->                           s = s * exp(m - n) + exp(x - n);  m = n
                                               each lane keeps its own m and s until the end of the row

Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, algorithm 3, over lanes instead of threads.
"""

from __future__ import annotations

from treadle_codegen.ir.loops import IntLike, Load, Loop, Store
from treadle_codegen.schedule.access import loop_reads, split_index
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.targets.renderer import const_key, split_at_reduce
from treadle_codegen.targets.triton.ops import VALUE_TYPES
from treadle_codegen.targets.triton.section import SectionWriter
from treadle_codegen.targets.triton.tiles import is_across, points

_BYTES_AT_ONCE = 16  # that a thread loads from consecutive addresses


def why_not_online(kernel: Kernel, k: int) -> str | None:
    """Why the sections `k` and `k + 1` are not the maximum of a row and the sum of its exponentials."""
    if k + 1 >= len(kernel.sections) or kernel.sections[k].axes != kernel.sections[k + 1].axes:
        return "there is no second section over the same row"
    first, second = kernel.sections[k].members, kernel.sections[k + 1].members
    if len(first) != 1 or len(second) != 1:
        return "more than two loops"
    maximum, total = first[0], second[0]
    if _only_reduction(maximum) != "max" or _only_reduction(total) != "sum":
        return "not a maximum and a sum"
    exponential = total.body[total.body[split_at_reduce(total) - 1].args[0]]
    if exponential.op != "exp" or not exponential.dtype.is_floating_point:
        return "not a sum of exponentials"
    difference = total.body[exponential.args[0]]
    if difference.op != "sub":
        return "not exponentials of differences"
    above = total.body[difference.args[1]]
    if above.op != "load" or above.attr not in _results(maximum):
        return "the differences are not those to the maximum"
    operand = maximum.body[split_at_reduce(maximum) - 1].args[0]
    return None if _equal(maximum, operand, total, difference.args[0]) else "the maximum is that of other values"


def _only_reduction(loop: Loop) -> str | None:
    kinds = [instr.attr for instr in loop.body if instr.op == "reduce"]
    stores_first = any(instr.op in ("store", "indirect_store") for instr in loop.body[: split_at_reduce(loop)])
    return kinds[0] if len(kinds) == 1 and not stores_first else None


def _results(loop: Loop) -> list[Load]:
    """Where the loop stores its reduction as it is."""
    at = split_at_reduce(loop) - 1
    return [
        Load(instr.attr.buffer, instr.attr.index)
        for instr in loop.body
        if instr.op == "store" and isinstance(instr.attr, Store) and instr.attr.mode is None and instr.args == (at,)
    ]


def _equal(a: Loop, i: int, b: Loop, j: int) -> bool:
    """Whether two instructions of two loops over the same axes compute the same."""
    one, other = a.body[i], b.body[j]
    same = one.op == other.op and one.dtype == other.dtype and const_key(one) == const_key(other)
    return same and all(_equal(a, x, b, y) for x, y in zip(one.args, other.args, strict=True))


class OnlineWriter(SectionWriter):
    """Writes the section of the maximum, and all of the section that follows it (`total`, the loop of the sum)."""

    def _lanes(self, maximum: Loop) -> tuple[int, bool]:
        """How many running maxima a row has, and whether the values of each are neighbours: those that a thread holds share one, so that
        one exponential scales the sum of all of them."""
        writer = self.writer
        assert writer.tiling is not None
        step = writer.tiling.steps[self.position]
        if is_across(writer.kernel):
            return step, True
        sizes = [writer.buffers[read.buffer].dtype.itemsize for read in loop_reads(maximum)]
        together = min(_BYTES_AT_ONCE // max(sizes, default=4), step)
        if all(self._is_aligned(read.index, together) for read in loop_reads(maximum)):
            return step // together, True
        return min(32 * writer.tiling.num_warps, step), False

    def _is_aligned(self, index: IntLike | None, elements: int) -> bool:
        """Whether all rows begin and end at multiples of so many elements: a thread then loads as many at once."""
        outer = [axis.symbol for axis in self.writer.kernel.outer]
        split = None if index is None else split_index(index, [*outer, *[axis.symbol for axis in self.section.axes]])
        if split is None:
            return False
        numbers = [*split[0][: len(outer)], *split[0][len(outer) : -1], split[1], points(self.section.axes)]
        return all(isinstance(n, int) and n % elements == 0 for n in numbers)

    def write_pair(self, total: Loop) -> None:
        writer = self.writer
        (maximum,) = self.section.members
        at, end = split_at_reduce(maximum) - 1, split_at_reduce(total) - 1
        kind = maximum.body[at]
        high, low = writer.fresh(), writer.fresh()
        lanes, are_neighbours = self._lanes(maximum)
        for variable, first in ((high, "float('-inf')"), (low, "0.0")):
            writer.line(f"{variable} = tl.full([XBLOCK, {lanes}], {first}, {VALUE_TYPES[kind.dtype]})")
        self.open_steps({})
        value = self._value(0, maximum, kind.args[0], {}, outer=False)
        assert self.dim is not None
        full = frozenset("xr")
        value = writer.spread(value, full)
        if self.dim.mask is not None:
            value = f"tl.where({self.dim.mask}, {value}, float('-inf'))"
        writer.line(
            f"{high}, {low} = online_step({high}, {low}, {value}, {lanes}, {are_neighbours}, {writer.approximately})"
        )
        self.close_steps()
        top, whole = writer.fresh(), writer.fresh()
        writer.line(f"{top} = reduce_max({high})")
        below = f"tl.where({high} == float('-inf'), 0.0, {low} * libdevice.exp({high} - {top}))"
        writer.line(f"{whole} = reduce_sum({below})")
        writer.value_dims |= {top: frozenset("x"), whole: frozenset("x")}
        for loop, k, result in ((maximum, at, top), (total, end, whole)):
            self.results = {(0, k): result}
            self._instructions(0, loop, k + 1, len(loop.body), outer=True)
