"""Graph breaks: run the instruction that could not be traced for real, then go on in a continuation function.

    def f(x):                 def f(x):                                  def f(y):          # continuation
        y = x + 1                 y = graph(x)            # replay ...       return y * 2
        print(y)         =>       print(y)
        return y * 2              return rest(y)          # rest = f    from the instruction behind the call on

The replacement rebuilds the operand stack before the instruction from the trace's values, runs the instruction, and passes its results and
the live locals to the continuation. An instruction that jumps has two continuations. For an exception that the instruction raises inside a
`try` or `with` of the frame there is a continuation at the handler. The hook compiles a continuation when it is called.

At a break inside called functions the continuation of the frame is given that of the function it has called (`output.left_frames`), and the
instruction runs in functions that stand for the called frames (`output.native_frames`).

In an `except` or `finally` block the instruction runs while the frame's exceptions are being handled, as `sys.exc_info()` shows them; the
continuation begins by handling them again. They must be exceptions that Python has raised, because these have a traceback.

A continuation that breaks does not call the next one. It returns it in a `NextContinuation`, and the replacement of the function itself
calls continuations until one returns something else. So a break in a loop, or many breaks in a row, do not recurse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..bytecode import OPS, CodeModel, Instruction
from ..bytecode.opcodes import MINOR
from ..bytecode.splice import why_not_cut
from ..values.base import NULL
from ..values.value import Value
from .breaking_instruction import (
    BRANCHES,
    LOAD_WITHOUT_NULL,
    condition,
    fused_jump,
    leave_by_exception,
    leaving_by_exception,
    native_code,
    pushed_slots,
    pushes_null,
    result_names,
    untouched_slots,
)
from .continuations import is_continuation
from .emit import FrameCode
from .left_frames import BINDINGS, Exit, Slot, kind_of, left_frames, value_in
from .native_frames import Exhausted, function_like, passing_call, without_outer_entries
from .replacement import Effects, ReplacementBuilder, emit_state_changes

if TYPE_CHECKING:
    from ..trace.result import TraceResult


class NextContinuation:
    """The replacement of a continuation returns this at a break: the continuation to call next, with its arguments."""

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., Any], *args: Any):
        self.function = function
        self.args = args


# Instructions between the target of FOR_ITER and the first one after the loop, by Python minor version: END_FOR, POP_TOP.
_LOOP_END_INSTRUCTIONS = {11: 0, 12: 1, 13: 2}

Names = dict[str, Callable[[], None]]
"""How to push the results of the breaking instruction."""


class Break:
    """The end of a replacement at a graph break. Raises Unsupported when the frame cannot be cut there.

    frames     the frames that are left, the compiled one first
    innermost  the last of them, which the instruction belongs to
    """

    def __init__(self, code: CodeType, model: CodeModel, result: TraceResult):
        self.nested = is_continuation(code)
        self.result = result
        self.frames = left_frames(code, model, result)
        self.innermost = self.frames[-1]
        self.model = self.innermost.model
        self.index = self.innermost.index
        self.instruction: Instruction = self.innermost.instruction
        self.stack = self.innermost.stack
        self.handled = [exception for frame in self.frames for exception in frame.handled]
        self.fused_jump = fused_jump(self.innermost)
        self.returning = _returning(self)
        self.returns_result = self.returning == len(self.frames)
        self.exits = [] if self.returns_result else _exits_of(self)
        self.catching = next((n for n in reversed(range(len(self.frames))) if self._handler(n) is not None), -1)
        self.on_exception = self._exception_exit()

    def values(self) -> list[Value]:
        """Everything that must be rebuilt. The operand stack comes first, bottom up: context managers are entered again in this order."""
        found: list[Value] = []
        for frame in self.frames:
            found += [value_in(slot) for slot in frame.stack if slot is not NULL]
        for frame in self.frames[1:]:
            assert frame.function is not None
            found.append(frame.function)
        for exit_ in (*self.exits, *([self.on_exception] if self.on_exception is not None else [])):
            found += _values_of(exit_)
        return found

    def exit_at(self, index: int, stack: Sequence[Slot], made: dict[str, str] | None = None, frame: int = -1) -> Exit:
        """The way out of all frames that goes on at `index` of one of them. Those further in are done."""
        frame %= len(self.frames)
        found = self.frames[frame].exit_at(index, stack, made)
        for caller in reversed(self.frames[:frame]):
            found = caller.exit_calling(found)
        return found

    def _handler(self, frame: int) -> Any:
        """The handler of the frame that an exception goes to; none if nothing but the frame's variables depends on it."""
        place = self.frames[frame]
        entry = found = place.model.handler_at(place.index)
        while entry is not None and place.model.only_restores(entry):
            entry = place.model.handler_at(entry.target)
        return None if entry is None else found

    def _exception_exit(self) -> Exit | None:
        if self.catching < 0:
            return None
        entry, frame = self._handler(self.catching), self.frames[self.catching]
        stack: list[Slot] = [*frame.stack[: entry.depth], *(["lasti"] if entry.lasti else []), "exception"]
        return self.exit_at(entry.target, stack, frame=self.catching)

    # ---- emission

    def emit(self, builder: ReplacementBuilder) -> None:
        """Emit the writes of the trace, the instruction, and the calls of the continuations."""
        effects = Effects(builder, self.values())
        effects.prepare()
        if builder.dry:
            return
        emit_state_changes(builder, self.result.state_changes)
        cb: FrameCode = builder.cb
        cb.positions = self.frames[0].instruction.positions
        start, end, handler = cb.label("start"), cb.label("end"), cb.label("handler")
        for exception in self.handled:
            effects.push(exception)
            cb.emit("PUSH_EXC_INFO")
            cb.pop_top()
        emit = _EMITTERS.get(kind_of(self.instruction), _emit_plain) if len(self.frames) == 1 else _emit_inside
        emit(self, builder, effects, (start, end))
        if self.on_exception is not None:
            cb.place(handler)
            cb.protect(start, end, handler, depth=len(self.handled))
            raised = builder.temporary()
            cb.store_fast(raised)
            if self.catching > 0:
                cb.call_constant(without_outer_entries, [raised, self.catching], functools.partial(_push_part, cb))
                cb.pop_top()
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
        names: Names | None = None,
    ) -> None:
        """Emit the call of a continuation, and return its result. names: how to push the results of the instruction."""
        cb: FrameCode = builder.cb
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
        count = _push_arguments(cb, effects, exit_, names or {})
        builder.delete_temporaries()
        cb.call(count + self.nested)
        if not self.nested:
            _emit_continuation_loop(cb)
        cb.return_value()


def _push_part(cb: FrameCode, part: str | int) -> None:
    if isinstance(part, str):
        cb.load_fast(part)
    else:
        cb.load_const(part)


def _values_of(exit_: Exit) -> Iterator[Value]:
    """The values of the trace that a continuation is called with."""
    yield from (value_in(slot) for slot in exit_.slots() if not isinstance(slot, str))
    if exit_.inner is not None:
        yield from _values_of(exit_.inner)


def _push_arguments(cb: FrameCode, effects: Effects, exit_: Exit, names: Names) -> int:
    """Push what a continuation is called with; gives the number of arguments."""
    count = 0
    for slot in exit_.slots():
        count += 1
        if isinstance(slot, str):
            names[slot]()
        else:
            effects.push(value_in(slot))
    if exit_.inner is None:
        return count
    assert exit_.inner.function is not None
    _push_function(cb, effects, exit_.inner.target.code, exit_.inner.function)
    cb.build_tuple(_push_arguments(cb, effects, exit_.inner, names))
    return count + 2


def _push_function(cb: FrameCode, effects: Effects, code: CodeType, like: Value) -> None:
    """Push a function of `code` with the globals and cells of another one."""
    cb.push_null()
    cb.load_const(function_like)
    cb.load_const(code)
    effects.push(like)
    cb.call(2)


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


# ---- kinds of instruction


def _exits_of(leaving: Break) -> list[Exit]:
    index, stack, target = leaving.index, leaving.stack, leaving.instruction.target
    kind = kind_of(leaving.instruction)
    if kind == "FOR_ITER":
        assert target is not None
        end = target + _LOOP_END_INSTRUCTIONS[MINOR]
        return [leaving.exit_at(index + 1, [*stack, "item"]), leaving.exit_at(end, stack[:-1])]
    if kind == "POP_JUMP":
        assert target is not None
        return [leaving.exit_at(index + 1, stack[:-1]), leaving.exit_at(target, stack[:-1])]
    if kind == "plain":
        return _exit_after(leaving)
    if kind in BINDINGS:
        return [_exit_bound(leaving)]
    assert target is not None  # JUMP_IF_TRUE_OR_POP, JUMP_IF_FALSE_OR_POP of 3.11
    return [leaving.exit_at(index + 1, stack[:-1]), leaving.exit_at(target, stack)]


def _exit_after(leaving: Break) -> list[Exit]:
    """The exit of a plain instruction; none if nothing follows it (RAISE_VARARGS)."""
    if OPS[leaving.instruction.opname].ends:
        return []
    if leaving.returning:
        frame = leaving.frames[-1 - leaving.returning]
        return [_exit_with_result(leaving, -1 - leaving.returning, [*frame.stack, "made 0"])]
    if leaving.fused_jump is not None:
        target = leaving.model.instructions[leaving.fused_jump].target
        assert target is not None
        below = leaving.stack[: untouched_slots(leaving.innermost)]
        return [leaving.exit_at(leaving.fused_jump + 1, below), leaving.exit_at(target, below)]
    return [
        _exit_with_result(
            leaving, -1, [*leaving.stack[: untouched_slots(leaving.innermost)], *pushed_slots(leaving.innermost)]
        )
    ]


def _exit_bound(leaving: Break) -> Exit:
    """The exit of an instruction that binds a local, or deletes it, which takes place as the continuation is called."""
    (frame,), index, name = leaving.frames, leaving.index + 1, leaving.instruction.argval
    if leaving.instruction.opname == "DELETE_FAST":
        return frame.exit_at(index, leaving.stack, deleted=name)
    return frame.exit_at(index, leaving.stack[:-1], {name: leaving.stack[-1]})


def _exit_with_result(leaving: Break, frame: int, stack: list[Slot]) -> Exit:
    """The exit of one of the frames after its instruction.

    If the next instruction drops the result or stores it in a local, that happens here, so the continuation needs no guard on it.
    """
    place = leaving.frames[frame]
    index = place.index + 1
    following = place.model.instructions[index]
    if isinstance(stack[-1] if stack else None, str) and why_not_cut(place.model, index + 1) is None:
        if following.opname == "POP_TOP":
            return leaving.exit_at(index + 1, stack[:-1], frame=frame)
        if following.opname == "STORE_FAST":
            return leaving.exit_at(index + 1, stack[:-1], {following.argval: str(stack[-1])}, frame)
    return leaving.exit_at(index, stack, frame=frame)


def _returning(leaving: Break) -> int:
    """How many frames, from the innermost outwards, return the result of the instruction (`return f(x)`): they need no continuation."""
    if kind_of(leaving.instruction) != "plain" or OPS[leaving.instruction.opname].ends:
        return 0
    if pushed_slots(leaving.innermost)[-1:] != ["made 0"]:
        return 0
    count = 0
    for frame in reversed(leaving.frames):
        if frame.handled or frame.model.instructions[frame.index + 1].opname != "RETURN_VALUE":
            break
        count += 1
    return count


def _emit_plain(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    """Run the instruction on the part of the stack that it may see, and store its results in temporaries."""
    cb: FrameCode = builder.cb
    for value in leaving.stack[untouched_slots(leaving.innermost) :]:
        if value is NULL:
            cb.push_null_here()
        else:
            effects.push(value_in(value))
    cb.place(place[0])
    if pushes_null(leaving.instruction):
        LOAD_WITHOUT_NULL[leaving.instruction.opname](cb, leaving.instruction)
    elif leaving.instruction.opname == "WITH_EXCEPT_START":
        cb.call_constant(leave_by_exception, leaving_by_exception(leaving.innermost), effects.push)
    else:
        cb.extend(leaving.innermost.whole)
    if leaving.fused_jump is not None:
        jumped = cb.label("jumped")
        BRANCHES[condition(leaving.model.instructions[leaving.fused_jump])](cb, jumped)
        cb.place(place[1])
        leaving.emit_call(builder, effects, leaving.exits[0])
        cb.place(jumped)
        leaving.emit_call(builder, effects, leaving.exits[1])
        return
    cb.place(place[1])
    if leaving.returns_result:
        cb.return_value()
    if leaving.exits:
        _emit_exit_with_results(leaving, builder, effects)


def _emit_exit_with_results(leaving: Break, builder: ReplacementBuilder, effects: Effects) -> None:
    """Go on with the results of a plain instruction, which are on the stack."""
    cb: FrameCode = builder.cb
    kept: Names = {}
    for name in reversed(result_names(leaving.innermost)):
        temporary = builder.temporary()
        cb.store_fast(temporary)
        kept[name] = functools.partial(cb.load_fast, temporary)
    leaving.emit_call(builder, effects, leaving.exits[0], kept)


def _emit_branch(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    cb: FrameCode = builder.cb
    jumped = cb.label("jumped")
    cb.place(place[0])
    effects.push(value_in(leaving.stack[-1]))
    BRANCHES[condition(leaving.instruction)](cb, jumped)  # an exit that keeps the value loads it again
    cb.place(place[1])
    leaving.emit_call(builder, effects, leaving.exits[0])
    cb.place(jumped)
    leaving.emit_call(builder, effects, leaving.exits[1])


def _emit_for_iter(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    cb: FrameCode = builder.cb
    end = cb.label("exhausted")
    effects.push(value_in(leaving.stack[-1]))
    cb.place(place[0])
    cb.for_iter(end)
    cb.place(place[1])
    item = builder.temporary()
    cb.store_fast(item)
    cb.pop_top()
    leaving.emit_call(builder, effects, leaving.exits[0], {"item": lambda: cb.load_fast(item)})
    cb.end_for(end)
    leaving.emit_call(builder, effects, leaving.exits[1])


def _emit_binding(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    """Go on in the continuation, whose arguments are all that is left of the frame."""
    cb: FrameCode = builder.cb
    cb.place(place[0])
    cb.emit("NOP")
    cb.place(place[1])
    leaving.emit_call(builder, effects, leaving.exits[0])


_EMITTERS: dict[str, Callable[[Break, ReplacementBuilder, Effects, Any], None]] = {
    "plain": _emit_plain,
    "POP_JUMP": _emit_branch,
    "JUMP_IF_TRUE_OR_POP": _emit_branch,
    "JUMP_IF_FALSE_OR_POP": _emit_branch,
    "FOR_ITER": _emit_for_iter,
    **dict.fromkeys(BINDINGS, _emit_binding),
}


# ---- inside called functions


def _emit_inside(leaving: Break, builder: ReplacementBuilder, effects: Effects, place: Any) -> None:
    """Run the instruction in functions that stand for the called frames, and go on with what the innermost one gives back."""
    cb: FrameCode = builder.cb
    codes = [passing_call(frame.model, frame.instruction.positions) for frame in leaving.frames[1:-1]]
    native, slots = native_code(leaving.innermost)
    functions = list(zip([*codes, native], leaving.frames[1:], strict=True))

    def push(position: int) -> int:
        """The arguments of one of the functions: of the last one the operands, of the others the next one and its arguments."""
        if position == len(functions) - 1:
            for slot in slots:
                effects.push(slot)
            return len(slots)
        push_function(position + 1)
        cb.build_tuple(push(position + 1))
        return 2

    def push_function(position: int) -> None:
        code, frame = functions[position]
        assert frame.function is not None
        _push_function(cb, effects, code, frame.function)

    cb.begin_call()
    push_function(0)
    cb.callable_done()
    count = push(0)
    cb.place(place[0])
    cb.call(count)
    cb.place(place[1])
    _emit_result(leaving, builder, effects)


def _emit_result(leaving: Break, builder: ReplacementBuilder, effects: Effects) -> None:
    """Go on according to what `native_code` gives back, which is on the stack."""
    cb: FrameCode = builder.cb
    if not leaving.exits:  # returned, or never come to
        cb.return_value()
        return
    if len(leaving.exits) == 2:
        result, other = builder.temporary(), cb.label("other")
        cb.store_fast(result)
        cb.load_fast(result)
        cb.load_const(Exhausted if kind_of(leaving.instruction) == "FOR_ITER" else True)
        cb.is_op()
        cb.pop_jump_if_true(other, exact_bool=True)
        leaving.emit_call(builder, effects, leaving.exits[0], {"item": lambda: cb.load_fast(result)})
        cb.place(other)
        leaving.emit_call(builder, effects, leaving.exits[1])
        return
    names = result_names(leaving.innermost)
    if not names:
        cb.pop_top()
    elif len(names) > 1:
        cb.emit("UNPACK_SEQUENCE", len(names))
        kept: Names = {}
        for name in names:  # the first item is on top
            temporary = builder.temporary()
            cb.store_fast(temporary)
            kept[name] = functools.partial(cb.load_fast, temporary)
        leaving.emit_call(builder, effects, leaving.exits[0], kept)
        return
    _emit_exit_with_results(leaving, builder, effects)
