"""CPython bytecode as data: read, analyse, write."""

from treadle_tracer.bytecode.model import NO_POSITIONS, CodeModel, ExceptionEntry, Instruction, Positions
from treadle_tracer.bytecode.opcodes import OPS, ArgKind, Op, stack_effect
from treadle_tracer.bytecode.read import BytecodeError, read

__all__ = [
    "NO_POSITIONS",
    "OPS",
    "ArgKind",
    "BytecodeError",
    "CodeModel",
    "ExceptionEntry",
    "Instruction",
    "Op",
    "Positions",
    "read",
    "stack_effect",
]
