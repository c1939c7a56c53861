"""Which values g++ may compute from bools as integers, so that a position made of them must be hidden from it (`hidden` in the prelude)."""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import Instr, Loop


def is_from_bools(loop: Loop, instr: Instr) -> bool:
    """Whether an instruction makes a number of a bool, or chooses one of two constants by it."""
    if instr.op == "cast":
        return loop.body[instr.args[0]].dtype is torch.bool
    return instr.op == "where" and all(loop.body[arg].op == "const" for arg in instr.args[1:])
