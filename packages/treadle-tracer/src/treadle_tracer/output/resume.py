"""Graph breaks: run the instruction that could not be traced for real, then go on in a continuation function.

    def f(x):                 def f(x):                                  def f(y):          # continuation
        y = x + 1                 y = graph(x)            # replay ...       return y * 2
        print(y)         =>       print(y)
        return y * 2              return rest(y)          # rest = f    from the instruction behind the call on

The replacement rebuilds the operand stack before the instruction from the trace's values, runs the instruction, and passes its results and
the live locals to the continuation. An instruction that jumps has two continuations. For an exception that the instruction raises inside a
`try` or `with` of the frame there is a continuation at the handler. The hook compiles a continuation when it is called.

In an `except` or `finally` block the instruction runs while the frame's exceptions are being handled, as `sys.exc_info()` shows them; the
continuation begins by handling them again. They must be exceptions that Python has raised, because these have a traceback.

A continuation that breaks does not call the next one. It returns it in a `NextContinuation`, and the replacement of the function itself
calls continuations until one returns something else. So a break in a loop, or many breaks in a row, do not recurse.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..bytecode import OPS, ArgKind, CodeModel, Instruction, SlotKind, live_locals, stack_kinds
from ..bytecode.opcodes import MINOR, NULL_AFTER_CALLABLE
from ..bytecode.splice import Continuation, restart_index, why_not_cut
from ..errors import Unsupported
from ..values.base import NULL, ConcreteValue
from ..values.value import Value
from .continuations import family_of, index_in_original, is_continuation
from .emit import FrameCode
from .replacement import Effects, ReplacementBuilder, emit_state_changes, settled

if TYPE_CHECKING:
    from ..trace.result import TraceResult


class NextContinuation:
    """The replacement of a continuation returns this at a break: the continuation to call next, with its arguments."""

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., Any], *args: Any):
        self.function = function
        self.args = args


# Callables that read the frame that calls them. In a replacement frame they would see its variables.
FRAME_READERS: tuple[Any, ...] = (
    *(locals, vars, dir, eval, exec, super),
    *(sys._getframe, inspect.currentframe, inspect.stack, inspect.trace),
)

# Slots that a call instruction takes off the stack.
_CALL_SLOTS: dict[str, Callable[[int], int]] = {
    "CALL": lambda arg: arg + 2,  # callable or method, NULL or self
    "CALL_KW": lambda arg: arg + 3,
    "CALL_FUNCTION_EX": lambda arg: 3 + (arg & 1),
}
# Instructions on the slots that hold what was handled before.
_EXCEPTION_STATE = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "RERAISE", "END_ASYNC_FOR", "CLEANUP_THROW"})
# Instructions between the target of FOR_ITER and the first one after the loop, by Python minor version: END_FOR, POP_TOP.
_LOOP_END_INSTRUCTIONS = {11: 0, 12: 1, 13: 2}


@dataclass(frozen=True)
class Handled:
    """The stack slot in which PUSH_EXC_INFO has saved what was handled before `exception`."""

    exception: Value


Slot = Value | str | Handled
"""A slot of a continuation's stack: a value of the trace, the name of a result of the breaking instruction, or an exception to handle."""


@dataclass(frozen=True)
class Exit:
    """One exit_ out of the breaking instruction: a continuation, its operand stack with the NULLs in it, and its locals."""

    target: Continuation
    stack: tuple[Slot, ...]
    locals: tuple[Slot, ...]


class Break:
    """The end of a replacement at a graph break. Raises Unsupported when the frame cannot be cut there."""

    def __init__(self, code: CodeType, model: CodeModel, result: TraceResult):
        self.nested = is_continuation(code)
        self.result = result
        # The next continuation is cut from the original function, so that a loop uses the same few again and again.
        family = family_of(code, model)
        index = index_in_original(code, model, result.index)
        if family is None or index < 0:
            raise _cannot_resume(
                result, "the original function is gone, or the break is in what the continuation itself adds"
            )
        self.family = family
        self.model = model = family.model
        self.index: int = _whole_call(model, index)
        self.instruction: Instruction = model.instructions[self.index]
        why = why_not_resume(model, self.index, result.stack)
        if why is not None:
            raise _cannot_resume(result, why)
        self.stack: list[Value | Handled] = _with_handled(model, self.index, result)
        self.handled = [slot.exception for slot in self.stack if isinstance(slot, Handled)]
        self.returns_result = _returns_result(self)
        self.fused_jump = _fused_jump(self)
        self.exits = [] if self.returns_result else _exits_of(self)
        self.on_exception = self._exception_exit()

    def values(self) -> list[Value]:
        """Everything that must be rebuilt. The operand stack comes first, bottom up: context managers are entered again in this order."""
        found: list[Value] = [_value_in(slot) for slot in self.stack if slot is not NULL]
        for exit_ in (*self.exits, *([self.on_exception] if self.on_exception is not None else [])):
            found += [_value_in(slot) for slot in exit_.locals if not isinstance(slot, str)]
        return found

    def exit_at(self, index: int, stack: Sequence[Slot], made: dict[str, str] | None = None) -> Exit:
        """The continuation from `index` on with this stack. made: locals that the breaking instruction has stored."""
        kinds = tuple(_kind_of_slot(slot) for slot in stack)
        known: dict[str, Slot] = {**self.result.locals, **self.result.cells, **(made or {})}
        live = live_locals(self.model, index)
        wanted = (*(name for name in live if name in known), *self._generators(known, live))
        target = self.family.member(index, wanted, kinds)
        return Exit(target, tuple(stack), tuple(known[name] for name in target.variables))

    def _generators(self, known: Mapping[str, Slot], live: Sequence[str]) -> list[str]:
        """Variables that nothing reads any more but that keep a generator alive: closing it may run code of the program."""
        own = self.model.localsplus[: len(self.model.localsplus) - len(self.model.freevars)]
        return [
            name
            for name in own
            if name not in live
            and isinstance(value := known.get(name), Value)
            and value.python_type() is types.GeneratorType
        ]

    def _exception_exit(self) -> Exit | None:
        entry = self.model.handler_at(self.index)
        if entry is None:
            return None
        return self.exit_at(
            entry.target, [*self.stack[: entry.depth], *(["lasti"] if entry.lasti else []), "exception"]
        )

    # ---- emission

    def emit(self, builder: ReplacementBuilder) -> None:
        """Emit the writes of the trace, the instruction, and the calls of the continuations."""
        effects = Effects(builder, self.values())
        effects.prepare()
        if builder.dry:
            return
        emit_state_changes(builder, self.result.state_changes)
        cb: FrameCode = builder.cb
        cb.positions = self.instruction.positions
        start, end, handler = cb.label("start"), cb.label("end"), cb.label("handler")
        for exception in self.handled:
            effects.push(exception)
            cb.emit("PUSH_EXC_INFO")
            cb.pop_top()
        emitter = _EMITTERS.get(_kind_of(self.instruction), _emit_plain)
        emitter(self, builder, effects, (start, end))
        if self.on_exception is not None:
            cb.place(handler)
            cb.protect(start, end, handler, depth=len(self.handled))
            raised = builder.temporary()
            cb.store_fast(raised)
            names = {
                "exception": lambda: cb.load_fast(raised),
                "lasti": lambda: cb.load_const(0),
            }  # 0: the line where it starts
            self.emit_call(builder, effects, self.on_exception, names)

    def emit_call(
        self,
        builder: ReplacementBuilder,
        effects: Effects,
        exit_: Exit,
        names: dict[str, Callable[[], None]] | None = None,
    ) -> None:
        """Emit the call of a continuation, and return its result. names: how to push the results of the instruction."""
        cb: FrameCode = builder.cb
        count = len(exit_.target.variables) + len(exit_.target.stack)
        for _ in self.handled:
            cb.emit("POP_EXCEPT")
        if self.nested:
            cb.push_null()
            cb.load_const(NextContinuation)
            cb.load_function(exit_.target.code)
        else:
            cb.begin_call()
            cb.load_function(exit_.target.code)
            cb.callable_done()
        for slot in (*exit_.locals, *exit_.stack):
            if isinstance(slot, str):
                assert names is not None
                names[slot]()
            elif slot is not NULL:
                effects.push(_value_in(slot))
        builder.delete_temporaries()
        cb.call(count + self.nested)
        if not self.nested:
            _emit_continuation_loop(cb)
        cb.return_value()


def _emit_continuation_loop(cb: FrameCode) -> None:
    """`while type(result) is NextContinuation: result = result.function(*result.args)`, result being on top of the stack."""
    result = cb.temp()
    again, done = cb.label("again"), cb.label("done")
    cb.store_fast(result)
    cb.place(again)
    cb.push_null()
    cb.load_const(type)
    cb.load_fast(result)
    cb.call(1)
    cb.load_const(NextContinuation)
    cb.is_op()
    cb.pop_jump_if_false(done, exact_bool=True)
    cb.begin_call()
    cb.load_fast(result)
    cb.load_attr("function")
    cb.callable_done()
    cb.load_fast(result)
    cb.load_attr("args")
    cb.load_const(None)
    cb.store_fast(result)
    cb.call_ex()
    cb.store_fast(result)
    cb.jump(again)
    cb.place(done)
    cb.load_fast(result)


def _whole_call(model: CodeModel, index: int) -> int:
    """The CALL of a KW_NAMES or PRECALL. The three pass each other values outside the stack, so they run as one."""
    while model.instructions[index].opname in ("KW_NAMES", "PRECALL"):
        index += 1
    return index


def _cannot_resume(result: TraceResult, why: str) -> Unsupported:
    reason = result.reason
    assert reason is not None
    return Unsupported("no-continuation", f"{why}; the break: {reason.code} {reason.context}", reason.user_stack)


def why_not_resume(model: CodeModel, index: int, stack: Sequence[Value]) -> str | None:
    """Why the frame cannot be left at this instruction and resumed elsewhere."""
    index = _whole_call(model, index)
    instruction = model.instructions[index]
    op = OPS[instruction.opname]
    if op.jumps and _kind_of(instruction) not in _EMITTERS:
        return f"{instruction.opname} cannot be carried out outside its own code"
    if op.name in ("PUSH_NULL", "SWAP", "COPY"):
        return f"{op.name} may move a NULL, which cannot be an argument of a continuation"
    if op.name in _EXCEPTION_STATE:
        return f"{op.name} changes which exception is being handled"
    if op.kind in (ArgKind.LOCAL, ArgKind.LOCAL_PAIR, ArgKind.FREE):
        return f"{instruction.opname} works on the frame's own variables"
    if op.name in _CALL_SLOTS:
        for value in stack[-_CALL_SLOTS[op.name](instruction.arg or 0) :][:2]:
            if isinstance(value, ConcreteValue) and any(value.obj is reader for reader in FRAME_READERS):
                return f"{value.obj.__name__}() looks at the frame that calls it"
    following = index + 1
    return None if op.jumps or op.ends else why_not_cut(model, following)


def _with_handled(model: CodeModel, index: int, result: TraceResult) -> list[Value | Handled]:
    """The operand stack. Where PUSH_EXC_INFO has saved the exception handled before, it holds the exception handled from there on."""
    stack: list[Value | Handled] = [settled(value) for value in result.stack]
    kinds = stack_kinds(model)[index] or ()
    current = result.handled
    for position in reversed([i for i, kind in enumerate(kinds) if kind is SlotKind.HANDLED]):
        if current is None or result.was_raised(current):
            raise _cannot_resume(result, "an exception that was raised in the trace is being handled")
        stack[position], current = Handled(current), settled(result.stack[position])
    return stack


def _kind_of_slot(slot: Slot) -> SlotKind:
    return SlotKind.NULL if slot is NULL else SlotKind.HANDLED if isinstance(slot, Handled) else SlotKind.VALUE


def _value_in(slot: Value | Handled) -> Value:
    return slot.exception if isinstance(slot, Handled) else slot


# ---- kinds of instruction


def _kind_of(instruction: Instruction) -> str:
    name = instruction.opname
    if name.startswith("POP_JUMP"):
        return "POP_JUMP"
    return name if OPS[name].jumps else "plain"


def _exits_of(leaving: Break) -> list[Exit]:
    index, stack, target = leaving.index, leaving.stack, leaving.instruction.target
    kind = _kind_of(leaving.instruction)
    if kind == "FOR_ITER":
        assert target is not None
        end = target + _LOOP_END_INSTRUCTIONS[MINOR]
        return [leaving.exit_at(index + 1, [*stack, "item"]), leaving.exit_at(end, stack[:-1])]
    if kind == "POP_JUMP":
        assert target is not None
        return [leaving.exit_at(index + 1, stack[:-1]), leaving.exit_at(target, stack[:-1])]
    if kind == "plain":
        return _exit_after(leaving)
    assert target is not None  # JUMP_IF_TRUE_OR_POP, JUMP_IF_FALSE_OR_POP of 3.11
    return [leaving.exit_at(index + 1, stack[:-1]), leaving.exit_at(target, stack)]


def _exit_after(leaving: Break) -> list[Exit]:
    """The exit of a plain instruction; none if nothing follows it (RAISE_VARARGS).

    If the next instruction drops the result or stores it in a local, that happens here, so the continuation needs no guard on it.
    """
    if OPS[leaving.instruction.opname].ends:
        return []
    index = leaving.index + 1
    if leaving.fused_jump is not None:
        target = leaving.model.instructions[leaving.fused_jump].target
        assert target is not None
        below = leaving.stack[: _untouched_slots(leaving)]
        return [leaving.exit_at(leaving.fused_jump + 1, below), leaving.exit_at(target, below)]
    stack: list[Slot] = [*leaving.stack[: _untouched_slots(leaving)], *_pushed_slots(leaving)]
    following = leaving.model.instructions[index]
    if isinstance(stack[-1] if stack else None, str) and why_not_cut(leaving.model, index + 1) is None:
        if following.opname == "POP_TOP":
            return [leaving.exit_at(index + 1, stack[:-1])]
        if following.opname == "STORE_FAST":
            return [leaving.exit_at(index + 1, stack[:-1], {following.argval: str(stack[-1])})]
    return [leaving.exit_at(index, stack)]


def _returns_result(leaving: Break) -> bool:
    """Whether the frame returns the result of the instruction (`return f(x)`), so that no continuation is needed."""
    if _kind_of(leaving.instruction) != "plain" or OPS[leaving.instruction.opname].ends:
        return False
    if leaving.handled:
        return False
    made = _pushed_slots(leaving)
    return leaving.model.instructions[leaving.index + 1].opname == "RETURN_VALUE" and made[-1:] == ["made 0"]


def _fused_jump(leaving: Break) -> int | None:
    """The index of the jump that tests the only result of the instruction (`if f(x):`); the two are carried out together."""
    if _kind_of(leaving.instruction) != "plain" or OPS[leaving.instruction.opname].ends:
        return None
    if _pushed_slots(leaving) != ["made 0"]:
        return None
    instructions = leaving.model.instructions
    index = leaving.index + 1
    index += instructions[index].opname == "TO_BOOL"
    return index if _kind_of(instructions[index]) == "POP_JUMP" else None


def _pushed_slots(leaving: Break) -> list[Slot]:
    """Names for the slots above `_untouched_slots` after a plain instruction, with the NULL of a callable where it belongs."""
    kinds = stack_kinds(leaving.model)[leaving.index + 1]
    assert kinds is not None
    made: list[Slot] = [f"made {slot}" for slot in range(len(kinds) - _untouched_slots(leaving))]
    if _pushes_null(leaving.instruction):
        made[-1 if NULL_AFTER_CALLABLE else -2] = NULL
    return made


def _pushes_null(instruction: Instruction) -> bool:
    """Whether the instruction loads a callable together with the NULL (or self) of the call that follows."""
    name = instruction.opname
    return name == "LOAD_METHOD" or (name in _WITH_NULL_FLAG and bool(instruction.flag_bits & 1))


_WITH_NULL_FLAG = ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_SUPER_ATTR")
# The same loads without the NULL. A NULL cannot be an argument, so the continuation pushes it itself.
_LOAD_WITHOUT_NULL: dict[str, Callable[[FrameCode, Instruction], None]] = {
    "LOAD_METHOD": lambda cb, i: cb.load_attr(i.argval),
    "LOAD_ATTR": lambda cb, i: cb.load_attr(i.argval),
    "LOAD_GLOBAL": lambda cb, i: cb.load_global(i.argval),
    "LOAD_SUPER_ATTR": lambda cb, i: cb.emit("LOAD_SUPER_ATTR", i.argval, arg=i.flag_bits & ~1),
}


def _untouched_slots(leaving: Break) -> int:
    """The number of slots at the bottom of the stack that the instruction does not see: up to the last NULL of an enclosing call, or up
    to the last handled exception."""
    if leaving.instruction.opname == "WITH_EXCEPT_START":
        return len(leaving.stack)
    slots = _CALL_SLOTS.get(leaving.instruction.opname)
    below = len(leaving.stack) - (slots(leaving.instruction.arg or 0) if slots is not None else 0)
    unseen = [i for i in range(below) if leaving.stack[i] is NULL or isinstance(leaving.stack[i], Handled)]
    return unseen[-1] + 1 if unseen else 0


def _emit_plain(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    """Run the instruction on the part of the stack that it may see, and store its results in temporaries."""
    cb: FrameCode = builder.cb
    for value in leaving.stack[_untouched_slots(leaving) :]:
        if value is NULL:
            cb.push_null_here()
        else:
            effects.push(_value_in(value))
    cb.place(place[0])
    if _pushes_null(leaving.instruction):
        _LOAD_WITHOUT_NULL[leaving.instruction.opname](cb, leaving.instruction)
    elif leaving.instruction.opname == "WITH_EXCEPT_START":
        leave = leaving.stack[-4]  # __exit__, the instruction that raised, what was handled before, the exception
        cb.call_constant(_leave_by_exception, [leave, leaving.stack[-1]], lambda slot: effects.push(_value_in(slot)))
    else:
        cb.extend(leaving.model.instructions[restart_index(leaving.model, leaving.index) : leaving.index + 1])
    if leaving.fused_jump is not None:
        jumped = cb.label("jumped")
        _BRANCHES[_condition(leaving.model.instructions[leaving.fused_jump])](cb, jumped)
        cb.place(place[1])
        leaving.emit_call(builder, effects, leaving.exits[0])
        cb.place(jumped)
        leaving.emit_call(builder, effects, leaving.exits[1])
        return
    cb.place(place[1])
    if leaving.returns_result:
        cb.return_value()
    if not leaving.exits:
        return
    kept: dict[str, Callable[[], None]] = {}
    for name in reversed([slot for slot in _pushed_slots(leaving) if isinstance(slot, str)]):
        temporary = builder.temporary()
        cb.store_fast(temporary)
        kept[name] = functools.partial(cb.load_fast, temporary)
    leaving.emit_call(builder, effects, leaving.exits[0], kept)


def _leave_by_exception(leave: Callable[..., Any], error: BaseException) -> Any:
    """What WITH_EXCEPT_START does."""
    return leave(type(error), error, error.__traceback__)


def _emit_branch(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    cb: FrameCode = builder.cb
    jumped = cb.label("jumped")
    cb.place(place[0])
    effects.push(_value_in(leaving.stack[-1]))
    _BRANCHES[_condition(leaving.instruction)](cb, jumped)  # an exit that keeps the value loads it again
    cb.place(place[1])
    leaving.emit_call(builder, effects, leaving.exits[0])
    cb.place(jumped)
    leaving.emit_call(builder, effects, leaving.exits[1])


def _condition(instruction: Instruction) -> str:
    return instruction.opname.partition("_IF_")[2].removesuffix("_OR_POP")


_BRANCHES: dict[str, Callable[[FrameCode, Any], None]] = {
    "TRUE": lambda cb, label: cb.pop_jump_if_true(label),
    "FALSE": lambda cb, label: cb.pop_jump_if_false(label),
    "NONE": lambda cb, label: cb.pop_jump_if_none(label),
    "NOT_NONE": lambda cb, label: cb.pop_jump_if_not_none(label),
}


def _emit_for_iter(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    cb: FrameCode = builder.cb
    end = cb.label("exhausted")
    effects.push(_value_in(leaving.stack[-1]))
    cb.place(place[0])
    cb.for_iter(end)
    cb.place(place[1])
    item = builder.temporary()
    cb.store_fast(item)
    cb.pop_top()
    leaving.emit_call(builder, effects, leaving.exits[0], {"item": lambda: cb.load_fast(item)})
    cb.end_for(end)
    leaving.emit_call(builder, effects, leaving.exits[1])


_EMITTERS: dict[str, Callable[[Break, ReplacementBuilder, Effects, Any], None]] = {
    "plain": _emit_plain,
    "POP_JUMP": _emit_branch,
    "JUMP_IF_TRUE_OR_POP": _emit_branch,
    "JUMP_IF_FALSE_OR_POP": _emit_branch,
    "FOR_ITER": _emit_for_iter,
}
