"""Emitting new code: ``CodeBuilder`` writes each operation as the running CPython version needs it.

builder = CodeBuilder(shape)
builder.load_callable_const(compiled)
builder.load_fast("x")
builder.call(1)
builder.return_value()
function.__code__ = builder.finish()
"""

from __future__ import annotations

import bisect
import inspect
import types
from collections.abc import Iterable, Sequence

from treadle_tracer.bytecode.model import NO_POSITIONS, CodeModel, ExceptionEntry, Instruction, Positions
from treadle_tracer.bytecode.opcodes import MINOR, NULL_AFTER_CALLABLE, OPS, RANGE_STARTS_LATE, ArgKind, compare_arg
from treadle_tracer.bytecode.read import BytecodeError
from treadle_tracer.bytecode.write import write


class Label:
    """A place in the code of one builder: ``label()`` makes it, ``place()`` sets it, jumps target it."""

    __slots__ = ("index", "name")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.index: int | None = None

    def __repr__(self) -> str:
        return f"Label({self.name!r}, {'not placed' if self.index is None else self.index})"


_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CLOSURE_FLAG, _DEFAULTS_FLAG = 8, 1  # MAKE_FUNCTION and SET_FUNCTION_ATTRIBUTE


class CodeBuilder:
    """Collects instructions and makes a code object (or model) of them.

    Locals that the emitted code uses and ``shape`` lacks are appended to its ``varnames`` in order of first use.
    ``positions`` is the source position of the next instructions.
    """

    def __init__(self, shape: CodeModel, *, prologue: bool = True) -> None:
        self.shape = shape
        self.positions: Positions = (shape.firstlineno, shape.firstlineno, None, None)
        self._instructions: list[Instruction] = []
        self._ranges: list[tuple[Label, Label, Label, int, bool]] = []
        if prologue:
            self.prologue()

    # -- frame of the function ---------------------------------------------------------------------------------------

    def prologue(self) -> None:
        """The start of every function: free variables, cells (also for arguments), generator, RESUME."""
        if self.shape.freevars:
            self.copy_free_vars(len(self.shape.freevars))
        for name in self.shape.cellvars:
            self.make_cell(name)
        if self.shape.flags & _GENERATORS:
            self.emit("RETURN_GENERATOR")
            self.emit("POP_TOP")
        self.resume()

    def copy_free_vars(self, count: int) -> None:
        self.emit("COPY_FREE_VARS", count)

    def make_cell(self, name: str) -> None:
        self.emit("MAKE_CELL", name)

    def resume(self, kind: int = 0) -> None:
        """``kind``: 0 at the start of a function, 1 after yield, 2 after yield from, 3 after await."""
        self.emit("RESUME", kind)

    def emit(self, opname: str, argval: object = None, *, arg: int | None = None) -> None:
        """Append one instruction by its name; ``argval`` as in ``Instruction`` (a ``Label`` for jumps).

        ``arg`` gives the flag bits that go with a name, or the operand itself where it is a plain number.
        """
        op = OPS.get(opname)
        if op is None:
            raise BytecodeError(f"{opname} is no opcode of Python 3.{MINOR}")
        if op.kind is ArgKind.NAME and arg is not None:
            self._append(opname, arg, argval, hint=False)
        elif op.kind is ArgKind.COMPARE and arg is None:
            self._append(opname, compare_arg(str(argval)), argval)
        elif op.kind is ArgKind.RAW:
            self._append(opname, argval if arg is None else arg, argval if arg is None else arg)
        else:
            self._append(opname, arg, argval)

    def _append(self, opname: str, arg: object, argval: object, *, hint: bool = True) -> None:
        if not hint and isinstance(arg, int) and arg >> OPS[opname].shift:
            raise BytecodeError(f"{opname} takes {OPS[opname].shift} flag bits, got {arg}")
        self._instructions.append(Instruction(opname, arg, argval, -1, self.positions))  # type: ignore[arg-type]

    def extend(self, instructions: Iterable[Instruction]) -> None:
        """Append instructions of a model that do not jump, keeping their positions."""
        for instruction in instructions:
            if instruction.op.jumps and not isinstance(instruction.argval, Label):
                raise BytecodeError(f"{instruction.opname} {instruction.argval} refers to its own model")
            self._instructions.append(instruction)

    # -- variables, constants, attributes ----------------------------------------------------------------------------

    def load_const(self, value: object) -> None:
        """Any object may be a constant."""
        self.emit("LOAD_CONST", value)

    def load_fast(self, name: str) -> None:
        self.emit("LOAD_FAST", name)

    def store_fast(self, name: str) -> None:
        self.emit("STORE_FAST", name)

    def delete_fast(self, name: str) -> None:
        self.emit("DELETE_FAST", name)

    def load_deref(self, name: str) -> None:
        self.emit("LOAD_DEREF", name)

    def load_closure(self, name: str) -> None:
        """Push the cell of a cell or free variable."""
        self.emit("LOAD_CLOSURE", name)

    def load_global(self, name: str) -> None:
        self.emit("LOAD_GLOBAL", name, arg=0)

    def store_global(self, name: str) -> None:
        self.emit("STORE_GLOBAL", name)

    def load_attr(self, name: str) -> None:
        self.emit("LOAD_ATTR", name, arg=0)

    def store_attr(self, name: str) -> None:
        """``value, object`` -> nothing."""
        self.emit("STORE_ATTR", name)

    # -- calls -------------------------------------------------------------------------------------------------------

    def begin_call(self) -> None:
        """Before the callable is pushed: ``begin_call(); <callable>; callable_done(); <arguments>; call(n)``."""
        if not NULL_AFTER_CALLABLE:
            self.push_null()

    def callable_done(self) -> None:
        """After the callable is pushed and before its arguments."""
        if NULL_AFTER_CALLABLE:
            self.push_null()

    def load_callable_const(self, function: object) -> None:
        """A constant as callable, ready for the arguments."""
        self.begin_call()
        self.load_const(function)
        self.callable_done()

    def call(self, count: int) -> None:
        """Call with ``count`` positional arguments."""
        if MINOR == 11:
            self.emit("PRECALL", count)
        self.emit("CALL", count)

    def call_ex(self, *, keywords: bool = False) -> None:
        """Call with a tuple of arguments on the stack, and a dict of keywords above it if ``keywords``."""
        self.emit("CALL_FUNCTION_EX", int(keywords))

    def make_function(self, code: types.CodeType, *, closure: Sequence[str] = (), defaults: bool = False) -> None:
        """Push a function of ``code`` over the cells ``closure``; ``defaults``: their tuple is on the stack."""
        flags = (_DEFAULTS_FLAG if defaults else 0) | (_CLOSURE_FLAG if closure else 0)
        if closure:
            for name in closure:
                self.load_closure(name)
            self.build_tuple(len(closure))
        self.load_const(code)
        if MINOR < 13:
            self.emit("MAKE_FUNCTION", flags)
            return
        self.emit("MAKE_FUNCTION")
        for flag in (_CLOSURE_FLAG, _DEFAULTS_FLAG):
            if flags & flag:
                self.emit("SET_FUNCTION_ATTRIBUTE", flag)

    # -- values on the stack -----------------------------------------------------------------------------------------

    def push_null(self) -> None:
        self.emit("PUSH_NULL")

    def pop_top(self) -> None:
        self.emit("POP_TOP")

    def copy(self, depth: int = 1) -> None:
        """Push the value at ``depth`` (1: the top) again."""
        self.emit("COPY", depth)

    def build_tuple(self, count: int) -> None:
        self.emit("BUILD_TUPLE", count)

    def build_list(self, count: int) -> None:
        self.emit("BUILD_LIST", count)

    def build_set(self, count: int) -> None:
        self.emit("BUILD_SET", count)

    def build_map(self, count: int) -> None:
        """From ``count`` pairs ``key, value``."""
        self.emit("BUILD_MAP", count)

    def binary_subscr(self) -> None:
        self.emit("BINARY_SUBSCR")

    def is_op(self, *, invert: bool = False) -> None:
        self.emit("IS_OP", int(invert))

    def _to_bool(self) -> None:
        """3.13 tests and negates nothing but exact booleans."""
        if MINOR >= 13:
            self.emit("TO_BOOL")

    # -- flow --------------------------------------------------------------------------------------------------------

    def label(self, name: str = "") -> Label:
        return Label(name)

    def place(self, label: Label) -> None:
        """Put ``label`` before the next instruction."""
        if label.index is not None:
            raise BytecodeError(f"{label!r} is placed twice")
        label.index = len(self._instructions)

    def nop(self) -> None:
        self.emit("NOP")

    def return_value(self) -> None:
        self.emit("RETURN_VALUE")

    def jump(self, label: Label) -> None:
        self.emit("JUMP_FORWARD" if label.index is None else "JUMP_BACKWARD", label)

    def pop_jump_if_true(self, label: Label, *, exact_bool: bool = False) -> None:
        """``exact_bool``: the value is known to be True or False itself (saves a conversion on 3.13)."""
        if not exact_bool:
            self._to_bool()
        self._pop_jump("TRUE", label)

    def pop_jump_if_false(self, label: Label, *, exact_bool: bool = False) -> None:
        if not exact_bool:
            self._to_bool()
        self._pop_jump("FALSE", label)

    def pop_jump_if_none(self, label: Label) -> None:
        self._pop_jump("NONE", label)

    def pop_jump_if_not_none(self, label: Label) -> None:
        self._pop_jump("NOT_NONE", label)

    def _pop_jump(self, condition: str, label: Label) -> None:
        if MINOR == 11:
            direction = "FORWARD" if label.index is None else "BACKWARD"
            self.emit(f"POP_JUMP_{direction}_IF_{condition}", label)
        elif label.index is None:
            self.emit(f"POP_JUMP_IF_{condition}", label)
        else:  # there is no backward form
            past = self.label()
            self.emit(f"POP_JUMP_IF_{_OPPOSITE[condition]}", past)
            self.jump(label)
            self.place(past)

    def for_iter(self, end: Label) -> None:
        """``iterator`` -> ``iterator, next value``; when there is none on to ``end``, where ``end_for`` stands."""
        self.emit("FOR_ITER", end)

    def end_for(self, end: Label) -> None:
        """Place the label of a ``for_iter``; after it the iterator is off the stack."""
        self.place(end)
        if MINOR >= 12:
            self.emit("END_FOR")
        if MINOR >= 13:
            self.pop_top()

    def protect(self, start: Label, end: Label, handler: Label, *, depth: int, lasti: bool = False) -> None:
        """Exceptions from ``start`` up to (not including) ``end`` go to ``handler`` with ``depth`` values kept.

        Ranges must not overlap.
        """
        self._ranges.append((start, end, handler, depth, lasti))

    # -- results -----------------------------------------------------------------------------------------------------

    def model(self) -> CodeModel:
        """The emitted code as a model, with labels resolved."""
        ranges = [r for r in self._ranges if _place_of(r[0]) < _place_of(r[1])]
        leads = sorted({_place_of(start) for start, *_ in ranges if self._needs_lead(start)})
        instructions: list[Instruction] = []
        for index, instruction in enumerate(self._instructions):
            if index in leads:
                instructions.append(Instruction("NOP", positions=instruction.positions))
            if type(instruction.argval) is Label:
                instruction = instruction._replace(argval=_shifted(instruction.argval, leads))
            instructions.append(instruction)
        exceptions = [
            ExceptionEntry(_shifted(start, leads), _shifted(end, leads) - 1, _shifted(handler, leads), depth, lasti)
            for start, end, handler, depth, lasti in ranges
        ]
        return self.shape.replace(
            instructions=tuple(instructions),
            exceptions=tuple(sorted(exceptions, key=lambda entry: entry.start)),
            varnames=self.shape.varnames + self._new_locals(),
        )

    def _needs_lead(self, start: Label) -> bool:
        """Whether a NOP must go before the first instruction of a range."""
        return RANGE_STARTS_LATE and self._instructions[_place_of(start)].opname not in _CALLS_NOTHING

    def _new_locals(self) -> tuple[str, ...]:
        known = dict.fromkeys(self.shape.localsplus)
        before = len(known)
        for instruction in self._instructions:
            kind = OPS[instruction.opname].kind
            if kind is ArgKind.LOCAL:
                known.setdefault(instruction.argval)
            elif kind is ArgKind.LOCAL_PAIR:
                known.update(dict.fromkeys(name for name in instruction.argval if name not in known))
        return tuple(known)[before:]

    def finish(self) -> types.CodeType:
        """The code object."""
        return write(self.model())


_OPPOSITE = {"TRUE": "FALSE", "FALSE": "TRUE", "NONE": "NOT_NONE", "NOT_NONE": "NONE"}


def _place_of(label: Label) -> int:
    if label.index is None:
        raise BytecodeError(f"{label!r} is used but never placed")
    return label.index


def _shifted(label: Label, leads: Sequence[int]) -> int:
    """The index of a label after one instruction is inserted before each of ``leads``."""
    place = _place_of(label)
    return place + bisect.bisect_left(leads, place)


_CALLS_NOTHING = frozenset({"NOP", "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_CHECK", "PUSH_NULL", "LOAD_DEREF", "COPY"})


__all__ = ["NO_POSITIONS", "CodeBuilder", "Label"]
