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
from treadle_tracer.bytecode.write import write

__all__ = [
    "NO_POSITIONS",
    "OPS",
    "ArgKind",
    "Block",
    "BytecodeError",
    "CodeBuilder",
    "CodeModel",
    "ExceptionEntry",
    "Instruction",
    "Label",
    "Op",
    "Positions",
    "SlotKind",
    "accesses",
    "blank",
    "blocks",
    "handlers",
    "live_locals",
    "live_variables",
    "max_stack",
    "new_code_like",
    "reachable",
    "read",
    "sketch",
    "stack_depths",
    "stack_effect",
    "stack_kinds",
    "successors",
    "write",
]
