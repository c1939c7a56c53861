"""Which integers are floats cut to whole numbers, so that g++ must not turn them back (`cut` in the prelude)."""

from __future__ import annotations

import torch

from treadle_codegen.ir.loops import Instr, Loop


def is_cut_float(loop: Loop, instr: Instr) -> bool:
    """Whether an instruction converts a float to an integer of 32 or 64 bits."""
    if instr.op != "cast" or instr.dtype not in (torch.int32, torch.int64):
        return False
    return loop.body[instr.args[0]].dtype.is_floating_point
