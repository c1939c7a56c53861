"""The code model: a code object as immutable data; names for table indices, instruction indices for offsets.

A jump's ``argval`` and every position in an ``ExceptionEntry`` is the *index of an instruction* in
``CodeModel.instructions``. ``CACHE`` and ``EXTENDED_ARG`` do not appear; the writer puts them back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from treadle_tracer.bytecode.opcodes import OPS, ArgKind, Op

Positions = tuple[int | None, int | None, int | None, int | None]
"""(line, end line, column, end column) as ``code.co_positions()`` yields them; columns count UTF-8 bytes."""

NO_POSITIONS: Positions = (None, None, None, None)


class _Fields(NamedTuple):
    opname: str
    arg: int | None = None
    argval: Any = None
    offset: int = -1
    positions: Positions = NO_POSITIONS


class Instruction(_Fields):
    """One instruction.

    opname     name in ``dis.opmap`` of the running interpreter
    arg        the operand as stored (EXTENDED_ARG folded), or None. For the writer it is a hint where ``argval`` says
               what is meant: the slot is kept when it holds ``argval``; the low flag bits of LOAD_GLOBAL, LOAD_ATTR
               and LOAD_SUPER_ATTR are always taken from it.
    argval     what the operand means: constant object, name, local name (a pair of names for superinstructions), cell
               or free variable name, operator text, intrinsic name, **index of the target instruction** for jumps;
               equal to ``arg`` for plain numbers
    offset     byte offset of the opcode itself, as ``dis`` and ``frame.f_lasti`` give it; -1 if never assembled
    positions  source position

    Compared and hashed by identity, so that instructions holding unhashable constants can be dictionary keys.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = object.__hash__

    @property
    def op(self) -> Op:
        return OPS[self.opname]

    @property
    def target(self) -> int | None:
        """Index of the instruction this one may jump to, or None if it never jumps."""
        return self.argval if OPS[self.opname].jumps else None

    @property
    def flag_bits(self) -> int:
        """The flags packed below a name index (LOAD_GLOBAL: 1 = push NULL; LOAD_ATTR: 1 = method call;
        LOAD_SUPER_ATTR: 1 = method call, 2 = two-argument ``super``); 0 for all other opcodes."""
        op = OPS[self.opname]
        return (self.arg or 0) & ((1 << op.shift) - 1) if op.kind is ArgKind.NAME else 0

    @property
    def line(self) -> int | None:
        return self.positions[0]


_RESTORING = frozenset({"SWAP", "POP_TOP", "STORE_FAST", "STORE_FAST_STORE_FAST"})


@dataclass(frozen=True, slots=True)
class ExceptionEntry:
    """Instructions ``start`` … ``end`` (both included) are handled at ``target``.

    On an exception the operand stack is cut to ``depth`` values, then the index of the raising instruction is pushed if
    ``lasti``, then the exception (CPython ``Objects/exception_handling_notes.txt``). Entries do not overlap and are
    ordered by ``start``.
    """

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@dataclass(frozen=True, slots=True)
class CodeModel:
    """A code object: instructions, exception table and the attributes ``types.CodeType`` is made from.

    ``varnames`` (arguments first), ``cellvars``, ``freevars`` are in slot order and never reordered. ``consts`` and
    ``names`` are where the writer starts: it appends what is missing and keeps what is there (``consts[0]`` may be the
    docstring).
    """

    instructions: tuple[Instruction, ...]
    exceptions: tuple[ExceptionEntry, ...]
    name: str
    qualname: str
    filename: str
    firstlineno: int
    flags: int
    argcount: int
    posonlyargcount: int
    kwonlyargcount: int
    varnames: tuple[str, ...]
    cellvars: tuple[str, ...]
    freevars: tuple[str, ...]
    consts: tuple[object, ...] = ()
    names: tuple[str, ...] = ()
    localsplus: tuple[str, ...] = field(init=False, repr=False)
    """All fast slots: locals, then cells that are no arguments or locals, then free variables."""

    def __post_init__(self) -> None:
        pure_cells = tuple(name for name in self.cellvars if name not in self.varnames)
        object.__setattr__(self, "localsplus", self.varnames + pure_cells + self.freevars)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of all argument slots: positional, keyword-only, ``*args``, ``**kwargs``, in slot order."""
        has_varargs, has_varkw = bool(self.flags & 0x04), bool(self.flags & 0x08)  # CO_VARARGS, CO_VARKEYWORDS
        return self.varnames[: self.argcount + self.kwonlyargcount + has_varargs + has_varkw]

    def replace(self, **changes: Any) -> CodeModel:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def handler_at(self, index: int) -> ExceptionEntry | None:
        """The exception table entry that covers instruction ``index``."""
        for entry in self.exceptions:
            if entry.start <= index <= entry.end:
                return entry
        return None

    def converts_stop_iteration(self, entry: ExceptionEntry) -> bool:
        """Whether the handler is the one that every generator has since 3.12: it turns StopIteration into RuntimeError (PEP 479)."""
        return self.instructions[entry.target].opname == "CALL_INTRINSIC_1"

    def ends_delegation(self, entry: ExceptionEntry) -> bool:
        """Whether the handler is that of a `yield from` since 3.12: it takes the StopIteration of a thrown-into iterator as its result."""
        return self.instructions[entry.target].opname == "CLEANUP_THROW"

    def only_restores(self, entry: ExceptionEntry) -> bool:
        """Whether the handler is that of an inlined comprehension: it restores the function's variables and raises again (PEP 709)."""
        for instruction in self.instructions[entry.target :]:
            if instruction.opname not in _RESTORING:
                return instruction.opname == "RERAISE"
        return False
