"""CPython bytecode as data: read, analyse, write."""

from treadle_tracer.bytecode.assemble import CodeBuilder, Label, blank, new_code_like, sketch
from treadle_tracer.bytecode.flow import (
    Block,
    SlotKind,
    accesses,
    blocks,
    handlers,
    live_locals,
    live_variables,
    max_stack,
    reachable,
    stack_depths,
    stack_kinds,
    successors,
)
from treadle_tracer.bytecode.model import NO_POSITIONS, CodeModel, ExceptionEntry, Instruction, Positions
from treadle_tracer.bytecode.opcodes import OPS, ArgKind, Op, stack_effect
from treadle_tracer.bytecode.read import BytecodeError, read
from treadle_tracer.bytecode.splice import (
    UNBOUND,
    Broken,
    Continuation,
    continuation,
    prefix,
    prologue_end,
    restart_index,
    why_not_cut,
)
from treadle_tracer.bytecode.write import write

__all__ = [
    "NO_POSITIONS",
    "OPS",
    "UNBOUND",
    "ArgKind",
    "Block",
    "Broken",
    "BytecodeError",
    "CodeBuilder",
    "CodeModel",
    "Continuation",
    "ExceptionEntry",
    "Instruction",
    "Label",
    "Op",
    "Positions",
    "SlotKind",
    "accesses",
    "blank",
    "blocks",
    "continuation",
    "handlers",
    "live_locals",
    "live_variables",
    "max_stack",
    "new_code_like",
    "prefix",
    "prologue_end",
    "reachable",
    "read",
    "restart_index",
    "sketch",
    "stack_depths",
    "stack_effect",
    "stack_kinds",
    "successors",
    "why_not_cut",
    "write",
]
