"""CPython bytecode as data: read it, analyse it, write it, build it, cut it. Needs nothing but CPython 3.11 – 3.13.

Positions are instruction indices everywhere: ``model.instructions[i]``, jump targets, exception ranges, analysis results.

Reading and writing
    read(code) -> CodeModel
    write(model) -> CodeType               # write(read(code)) is code, byte for byte
    CodeModel      instructions, exceptions, name, qualname, filename, firstlineno, flags, argcount, posonlyargcount,
                   kwonlyargcount, varnames, cellvars, freevars, consts, names, localsplus; .arguments,
                   .replace(**fields), .handler_at(index) -> ExceptionEntry | None, .converts_stop_iteration(entry),
                   .ends_delegation(entry), .only_restores(entry)
    Instruction    opname, arg, argval, offset, positions; .op, .target (index or None), .flag_bits, .line; ._replace(...)
    ExceptionEntry start, end (included), target, depth, lasti
    OPS[name] -> Op(name, code, kind: ArgKind, effect, jump_effect, ends, shift, caches; .jumps); stack_effect(op, arg, jump=)
    opcodes: BINARY_OPS, COMPARE_OPS, INTRINSICS_1, INTRINSICS_2, PAIR_PARTS, NULL_AFTER_CALLABLE, MINOR,
             compare_arg(text, to_bool=), compare_converts_to_bool(arg)

Analysis (flow)
    successors(model, i); handlers(model) -> entry per instruction; blocks(model) -> Block(start, end, successors, handlers)
    stack_depths(model) -> [int | None]; max_stack(model)
    stack_kinds(model) -> [tuple of SlotKind | None]         # VALUE, NULL, HANDLED (saved exc_info), EITHER
    live_variables(model) -> [frozenset]; live_locals(model, i) -> names in slot order; accesses(instruction)

Building (assemble)
    builder = CodeBuilder(shape)           # shape: a CodeModel, whose signature and variables the code has
    builder.<operation>(...) ...; builder.finish() -> CodeType; builder.model() -> CodeModel
    calls: load_callable_const(f) | begin_call(); ...; callable_done(), then the arguments, then call(n) | call_ex(keywords=)

Cutting (splice)
    why_not_cut(model, i) -> str | None; restart_index(model, i); prologue_end(model)
    continuation(model, i, variables=, stack=, name=) -> Continuation(code, start, variables, stack, origin, call)
    resumed_call(model, i, variables=, stack=) -> Continuation     # from the middle of call i on, with another function called in it

Errors: BytecodeError (a ValueError) says which instruction of which function is wrong and why.
"""

from treadle_tracer.bytecode.assemble import CodeBuilder, Label
from treadle_tracer.bytecode.flow import (
    Block,
    SlotKind,
    accesses,
    blocks,
    handlers,
    joins,
    live_locals,
    live_names,
    live_variables,
    max_stack,
    same_tails,
    stack_depths,
    stack_kinds,
    successors,
)
from treadle_tracer.bytecode.model import NO_POSITIONS, CodeModel, ExceptionEntry, Instruction, Positions
from treadle_tracer.bytecode.opcodes import OPS, ArgKind, Op, stack_effect
from treadle_tracer.bytecode.read import BytecodeError, read
from treadle_tracer.bytecode.splice import (
    Continuation,
    continuation,
    prologue_end,
    restart_index,
    resumed_call,
    suspended_generator,
    why_not_cut,
)
from treadle_tracer.bytecode.write import write

__all__ = [
    "NO_POSITIONS",
    "OPS",
    "ArgKind",
    "Block",
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
    "blocks",
    "continuation",
    "handlers",
    "joins",
    "live_locals",
    "live_names",
    "live_variables",
    "max_stack",
    "prologue_end",
    "read",
    "restart_index",
    "resumed_call",
    "same_tails",
    "stack_depths",
    "stack_effect",
    "stack_kinds",
    "successors",
    "suspended_generator",
    "why_not_cut",
    "write",
]
