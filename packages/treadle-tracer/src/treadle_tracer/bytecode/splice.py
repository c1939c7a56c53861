"""Cutting a function at an instruction: ``continuation`` is the code from there on.

    def f(x):            continuation:  def f(y): return y * 2
        y = x + 1
        # <- cut here
        return y * 2

A continuation is all of the original code that can still run, behind a new start that pushes the operand stack and jumps
to the cut: loops run on and exception ranges still cover what they covered. Its parameters are the live locals and the stack slots. A cell
variable is passed as *the cell itself*, in a parameter that is also a cell variable and for which the new start makes no
cell: closures made before and after the cut share it. Free variables stay free variables: a continuation is called with
the closure of the original function.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from treadle_tracer.bytecode.assemble import CodeBuilder
from treadle_tracer.bytecode.flow import (
    SlotKind,
    accesses,
    handlers,
    live_locals,
    stack_depths,
    stack_kinds,
    successors,
)
from treadle_tracer.bytecode.model import CodeModel, ExceptionEntry, Instruction
from treadle_tracer.bytecode.opcodes import OPS, ArgKind
from treadle_tracer.bytecode.read import BytecodeError, read
from treadle_tracer.bytecode.write import write

_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_CALL_PARTS = ("KW_NAMES", "PRECALL", "CALL")


@dataclass(frozen=True, slots=True)
class Continuation:
    """The code of a continuation and what to call it with: ``variables`` in this order, then the slots ``stack``.

    start      the instruction it goes on with (see ``restart_index``)
    variables  names of the original variables passed. Each takes the contents of the variable's slot: the value of a
               local, the cell object of a cell variable (but its value where an inlined comprehension of 3.12 or later
               uses the slot for a plain variable of the same name and keeps the cell on the stack).
    stack      numbers of the stack slots passed, bottom first: all that are not NULL. A HANDLED slot takes the exception
               that is being handled there.
    origin     for every instruction of ``code`` its index in the original, -1 for what was put in
    call       the instruction of ``code`` that calls the function passed, see ``resumed_call``; -1 if there is none
    """

    code: types.CodeType
    start: int
    variables: tuple[str, ...]
    stack: tuple[int, ...]
    origin: tuple[int, ...] = ()
    call: int = -1


def prologue_end(model: CodeModel) -> int:
    """Index of the first instruction after RESUME."""
    for index, instruction in enumerate(model.instructions):
        if instruction.opname == "RESUME":
            return index + 1
    raise BytecodeError(f"{model.qualname} has no RESUME")


def restart_index(model: CodeModel, index: int) -> int:
    """The instruction to cut at so that ``index`` runs whole.

    KW_NAMES, PRECALL and CALL (3.11; KW_NAMES and CALL in 3.12) hand each other values outside the stack, so a cut
    between them goes before the first of them. The stack is the same there: none of them but CALL moves it.
    """
    while (
        index > 0
        and model.instructions[index].opname in _CALL_PARTS[1:]
        and model.instructions[index - 1].opname in _CALL_PARTS[: _CALL_PARTS.index(model.instructions[index].opname)]
    ):
        index -= 1
    return index


def why_not_cut(model: CodeModel, index: int) -> str | None:
    """Why the function cannot be cut before instruction ``index``, or None if it can."""
    if model.flags & _GENERATORS:
        return "a generator or coroutine keeps its frame and cannot go on in another one"
    return _why_not_place(model, index)


def _why_not_place(model: CodeModel, index: int) -> str | None:
    if not model.flags & inspect.CO_OPTIMIZED:
        return "class and module bodies keep their variables in a namespace"
    if not prologue_end(model) <= index < len(model.instructions):
        return "the prologue builds the frame and cannot be left out"
    opnames = [instruction.opname for instruction in model.instructions[index - 1 : index + 1]]
    if opnames[1] == "END_FOR" or (opnames[0] == "END_FOR" and opnames[1] == "POP_TOP"):
        return "the end of a for loop belongs to its FOR_ITER"
    if stack_depths(model)[index] is None:
        return "no execution gets there"
    return None


def suspended_generator(
    model: CodeModel, index: int, variables: Iterable[str], stack: Sequence[SlotKind]
) -> Continuation:
    """A generator function like this one that begins before its YIELD_VALUE ``index``.

        def f(x):                  suspended at the first yield:    def f(x):
            yield x + 1                                                 # the stack slots are pushed
            yield x * 2                                                 yield None
                                                                        yield x * 2

    ``stack`` describes the slots below the yielded value and that value; pass None for the value. After one ``next`` the generator is
    where the original one is that is suspended there: ``send``, ``throw`` and ``close`` find the same handlers and variables.

    Raises BytecodeError where the function cannot be cut, and if ``index`` is no YIELD_VALUE of a generator function.
    """
    if not model.flags & inspect.CO_GENERATOR or model.instructions[index].opname != "YIELD_VALUE":
        raise BytecodeError(f"instruction {index} of {model.qualname} is no yield of a generator")
    _check(model, index, _why_not_place(model, index))
    return _cut(model, index, variables, stack, None)


def _check(model: CodeModel, index: int, reason: str | None) -> None:
    if reason is not None:
        raise BytecodeError(f"{model.qualname} cannot be cut at instruction {index}: {reason}")


def _check_cut(model: CodeModel, index: int) -> int:
    _check(model, index, why_not_cut(model, index))
    return restart_index(model, index)


def continuation(
    model: CodeModel,
    index: int,
    *,
    variables: Iterable[str] | None = None,
    stack: Sequence[SlotKind] | None = None,
    name: str | None = None,
) -> Continuation:
    """The rest of a function from instruction ``index`` on, as a function of live locals and operand stack.

    ``variables``: locals and cells to pass, by default ``live_locals(model, index)``. Leave out those without
    a value: they are unbound in the continuation. Every live one that has a value must be there. Order does not count.
    ``stack``: what each stack slot holds, by default what ``stack_kinds`` finds; EITHER is not allowed.

    Raises BytecodeError where ``why_not_cut`` gives a reason, or if ``stack`` does not describe the stack.
    """
    return _cut(model, _check_cut(model, index), variables, stack, name)


def resumed_call(
    model: CodeModel, index: int, *, variables: Iterable[str] | None = None, stack: Sequence[SlotKind]
) -> Continuation:
    """A function in the middle of its call ``index``, as a function of its live locals, the stack below the call, and what is called.

        def f(x):            resumed call:  def f(y, rest, args):
            y = x + 1                           return rest(*args) * y
            return g(x) * y

    The parameters are the variables, the stack slots, a function, and a tuple of its arguments. The call stands where the original one
    stood: its exceptions go to the same handler, and tracebacks show the same line. ``origin`` of the call is ``index``.
    ``variables``: by default ``live_locals(model, index)``. ``stack``: what each slot below the callable holds.

    Raises BytecodeError where ``why_not_cut`` gives a reason for the instruction after the call, or if ``stack`` does not describe the
    stack.
    """
    _check(model, index + 1, why_not_cut(model, index + 1))
    wanted = live_locals(model, index) if variables is None else variables
    return _cut(model, index + 1, wanted, (*stack, SlotKind.VALUE), None, call=index)


def _cut(
    model: CodeModel,
    start: int,
    variables: Iterable[str] | None,
    stack: Sequence[SlotKind] | None,
    name: str | None,
    call: int = -1,
) -> Continuation:
    """call: the instruction before ``start``, if the top of the stack is to be the result of a call in its place."""
    kinds = _known_kinds(model, start, stack)
    if call >= 0:
        kinds = kinds[:-1]
    wanted = set(live_locals(model, start) if variables is None else variables)
    own = model.localsplus[: len(model.localsplus) - len(model.freevars)]
    unknown = wanted.difference(own)
    if unknown:
        raise BytecodeError(f"{', '.join(sorted(unknown))}: no local variable of {model.qualname}")
    passed = tuple(variable for variable in own if variable in wanted)
    slots = tuple(i for i, kind in enumerate(kinds) if kind is not SlotKind.NULL)
    kept = _kept(model, start, call)
    used = {variable for i in kept for variable, _ in accesses(model.instructions[i])}.union(passed)
    stem = _stem(used)
    called = (f"{stem}{len(kinds)}", f"{stem}{len(kinds) + 1}") if call >= 0 else ()
    parameters = (*passed, *(f"{stem}{i}" for i in slots), *called)
    shape = _shape(model, parameters, used, name)
    builder = CodeBuilder(shape, prologue=False)
    builder.positions = model.instructions[start].positions
    if model.freevars:
        builder.copy_free_vars(len(model.freevars))
    if model.flags & inspect.CO_GENERATOR:
        builder.emit("RETURN_GENERATOR")
        builder.pop_top()
    builder.resume()
    for slot, kind in enumerate(kinds):
        _push_slot(builder, f"{stem}{slot}", kind)
    if call >= 0:
        builder.positions = model.instructions[call].positions
        _push_call(builder, *called)
    head = builder.model().instructions
    landing = len(head) + 1 + kept.index(start)
    place = {index: len(head) + 1 + number + (index >= start) for number, index in enumerate(kept)}
    body = _moved([model.instructions[i] for i in kept], model, shape, place)
    body.insert(kept.index(start), Instruction("NOP", positions=builder.positions))
    jump = Instruction("JUMP_FORWARD", None, landing, -1, builder.positions)
    # The NOP belongs to the range of the cut: see opcodes.RANGE_STARTS_LATE.
    covered = place | {start: landing}
    exceptions = (*_entry_of_call(model, call, len(head), place), *_moved_entries(model.exceptions, place, covered))
    code = write(shape.replace(instructions=(*head, jump, *body), exceptions=exceptions))
    origin = [*[-1] * (len(head) + 1), *kept]
    origin.insert(landing, -1)
    if call >= 0:
        origin[len(head) - 1] = call
    found = _split_origin(code, (*head, jump, *body), origin)
    return Continuation(code, start, passed, slots, found, found.index(call) if call >= 0 else -1)


def _split_origin(code: types.CodeType, written: Sequence[Instruction], origin: Sequence[int]) -> tuple[int, ...]:
    """``origin`` of the instructions as they were written: a superinstruction may have become its two parts."""
    if not any(instruction.op.kind is ArgKind.LOCAL_PAIR for instruction in written):
        return tuple(origin)
    names = iter([instruction.opname for instruction in read(code).instructions])
    result: list[int] = []
    for instruction, place in zip(written, origin, strict=True):
        result.append(place)
        if next(names) != instruction.opname:
            next(names)
            result.append(-1)
    return tuple(result)


def _stem(taken: Iterable[str]) -> str:
    """Beginning of the names of the variables that carry stack slots: no user variable can be called so."""
    stem = ".stack"
    while any(variable.startswith(stem) for variable in taken):
        stem = "." + stem
    return stem


def _kept(model: CodeModel, start: int, call: int = -1) -> list[int]:
    """The instructions a continuation needs: what can be reached, also from the handler of ``call``, and every MAKE_CELL.

    A MAKE_CELL before the cut is jumped over, but frames look for it to tell a cell from a value in a cell variable's
    slot (``_PyFrame_OpAlreadyRan``, behind ``locals()``).
    """
    covering = handlers(model)
    reached: set[int] = set()
    handler = covering[call] if call >= 0 else None
    work = [start] if handler is None else [start, handler.target]
    while work:
        index = work.pop()
        if index in reached:
            continue
        reached.add(index)
        work.extend(successors(model, index))
        entry = covering[index]
        if entry is not None:
            work.append(entry.target)
    cells = {i for i, instruction in enumerate(model.instructions) if instruction.opname == "MAKE_CELL"}
    return sorted(reached | cells)


def _known_kinds(model: CodeModel, start: int, stack: Sequence[SlotKind] | None) -> tuple[SlotKind, ...]:
    depth = stack_depths(model)[start]
    kinds = stack_kinds(model)[start] if stack is None else tuple(stack)
    if kinds is None or len(kinds) != depth:
        raise BytecodeError(f"{model.qualname} has {depth} stack slots at instruction {start}, not {kinds}")
    if SlotKind.EITHER in kinds:
        slot = kinds.index(SlotKind.EITHER)
        raise BytecodeError(f"stack slot {slot} at instruction {start} of {model.qualname}: say if it is NULL")
    return kinds


def _shape(model: CodeModel, parameters: tuple[str, ...], used: Collection[str], name: str | None) -> CodeModel:
    """The header of a continuation: the parameters come first, the other locals it uses follow in their order."""
    rest = tuple(variable for variable in model.varnames if variable in used and variable not in parameters)
    return model.replace(
        instructions=(),
        exceptions=(),
        name=model.name if name is None else name,
        qualname=model.qualname if name is None else name,
        flags=model.flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        argcount=len(parameters),
        posonlyargcount=0,
        kwonlyargcount=0,
        varnames=parameters + rest,
    )


def _push_slot(builder: CodeBuilder, variable: str, kind: SlotKind) -> None:
    if kind is SlotKind.NULL:
        builder.push_null()
        return
    builder.load_fast(variable)
    builder.delete_fast(variable)  # the stack owns it, as it did: nothing lives longer than in the original
    if kind is SlotKind.HANDLED:  # become the handler of that exception, as the original was
        builder.emit("PUSH_EXC_INFO")
        builder.pop_top()


def _push_call(builder: CodeBuilder, function: str, arguments: str) -> None:
    """``function(*arguments)``; the NOP is for ``opcodes.RANGE_STARTS_LATE``."""
    builder.begin_call()
    builder.load_fast(function)
    builder.callable_done()
    builder.load_fast(arguments)
    builder.delete_fast(function)
    builder.delete_fast(arguments)
    builder.nop()
    builder.call_ex()


def _entry_of_call(model: CodeModel, call: int, head: int, place: dict[int, int]) -> tuple[ExceptionEntry, ...]:
    """The handler of the instruction ``call`` for the call that ends a head of so many instructions."""
    entry = model.handler_at(call) if call >= 0 else None
    if entry is None:
        return ()
    return (ExceptionEntry(head - 2, head - 1, place[entry.target], entry.depth, entry.lasti),)


def _moved(
    instructions: Iterable[Instruction], model: CodeModel, shape: CodeModel, place: dict[int, int]
) -> list[Instruction]:
    """``instructions`` of ``model`` with the slots of ``shape``, jumping to where ``place`` puts their targets."""
    first_free, new_first_free = (len(m.localsplus) - len(m.freevars) for m in (model, shape))
    slot_of = {variable: i for i, variable in enumerate(shape.localsplus[:new_first_free])}
    slots = [
        slot_of.get(variable) if slot < first_free else new_first_free + slot - first_free
        for slot, variable in enumerate(model.localsplus)
    ]
    result = []
    for instruction in instructions:
        kind, arg = OPS[instruction.opname].kind, instruction.arg
        if kind is ArgKind.LOCAL or kind is ArgKind.FREE:
            instruction = instruction._replace(arg=None if arg is None else slots[arg])
        elif kind is ArgKind.LOCAL_PAIR:
            instruction = instruction._replace(arg=None)
        result.append(_retargeted(instruction, place))
    return result


def _retargeted(instruction: Instruction, place: dict[int, int]) -> Instruction:
    return instruction._replace(argval=place[instruction.argval]) if OPS[instruction.opname].jumps else instruction


def _moved_entries(
    entries: Iterable[ExceptionEntry], place: dict[int, int], covered: dict[int, int]
) -> tuple[ExceptionEntry, ...]:
    """What is left of each entry: ``covered`` says where a range begins, ``place`` where it ends and is handled."""
    result = []
    for entry in entries:
        indices = [i for i in range(entry.start, entry.end + 1) if i in place]
        if indices:
            first, last = covered[indices[0]], place[indices[-1]]
            result.append(ExceptionEntry(first, last, place[entry.target], entry.depth, entry.lasti))
    return tuple(result)
