"""Positions that are data: which of a loop's may be out of range."""

from __future__ import annotations

from collections.abc import Mapping

from treadle_codegen.ir.loops import IntLike, Loop
from treadle_shapes.expr import And, Ge, Lt, Range, Symbol, simplify


def checks_positions(loop: Loop) -> bool:
    """Whether a loop checks positions that are data."""
    checking = ("indirect_load", "indirect_store", "check_position")
    return not loop.is_checked and any(instr.op in checking for instr in loop.body)


def positions_to_check(loop: Loop, ranges: Mapping[Symbol, Range]) -> list[tuple[int, IntLike]]:
    """The instructions whose values are positions that may be out of range, each with the size of the dimension."""
    found: dict[tuple[int, IntLike], None] = {}
    for instr in loop.body if not loop.is_checked else ():
        if instr.op == "check_position":
            found[(instr.args[0], instr.attr)] = None
        elif instr.op in ("indirect_load", "indirect_store"):
            for k, size in zip(instr.args[instr.op == "indirect_store" :], instr.attr[2], strict=True):
                position = loop.body[k]
                if position.op not in ("index", "const") or not lies_inside(position.attr, size, ranges):
                    found[(k, size)] = None
    return list(found)


def lies_inside(e: IntLike, size: IntLike, ranges: Mapping[Symbol, Range]) -> bool:
    """Whether an expression is a position in a dimension of that size, given the ranges of its symbols."""
    return simplify(And(Ge(e, 0), Lt(e, size)), ranges) is True
