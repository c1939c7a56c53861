"""Handlers of opcodes that jump, loop, raise, handle exceptions, match patterns and leave the frame."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.bytecode import OPS
from treadle_tracer.class_facts import flags_of, is_subtype, name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.trace.likely import likely_truth
from treadle_tracer.trace.op_handler import OpHandler
from treadle_tracer.trace.speculation import branch, branch_on_data
from treadle_tracer.values.base import NONE, boolean, is_none
from treadle_tracer.values.coroutines import CoroutineValue
from treadle_tracer.values.exception_groups import exception_behind_handlers, match_group
from treadle_tracer.values.exceptions import matches
from treadle_tracer.values.functions import ClassValue
from treadle_tracer.values.generators import GeneratorValue, send_into
from treadle_tracer.values.joined import undecided_truth
from treadle_tracer.values.locks import is_outside_lock
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.tracebacks import RunTimeTraceback
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Raised, Value, special_method

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame

LEAVE = True


# ---- jumps


def _jump(frame: Frame, i: Instruction) -> None:
    frame.pc = i.argval


def _jump_if(frame: Frame, i: Instruction, when: bool, keeps: bool = False) -> bool:
    """Jump if the truth of the top of the stack is `when`; a taken jump keeps the top if `keeps`. The result: whether the frame is left."""
    value = frame.stack[-1]
    condition = undecided_truth(frame.tx, value)
    if condition is not None:
        return branch(frame, condition, when, i.argval, keeps)
    if isinstance(value, SymbolicValue) and is_unbacked(frame.tx, value):
        is_left = branch_on_data(frame, value, when, i.argval, keeps)
        if is_left is not None:
            return is_left
    truth = likely_truth(frame, value, when, i.argval)
    if not keeps:
        frame.stack.pop()
    if (value.truth(frame.tx) if truth is None else truth) is when:
        frame.pc = i.argval
    elif keeps:
        frame.stack.pop()
    return False


def _pop_jump_if_true(frame: Frame, i: Instruction) -> bool:
    return _jump_if(frame, i, True)


def _pop_jump_if_false(frame: Frame, i: Instruction) -> bool:
    return _jump_if(frame, i, False)


def _pop_jump_if_none(frame: Frame, i: Instruction) -> None:
    if is_none(frame.stack.pop()):
        frame.pc = i.argval


def _pop_jump_if_not_none(frame: Frame, i: Instruction) -> None:
    if not is_none(frame.stack.pop()):
        frame.pc = i.argval


def _jump_if_true_or_pop(frame: Frame, i: Instruction) -> bool:
    return _jump_if(frame, i, True, keeps=True)


def _jump_if_false_or_pop(frame: Frame, i: Instruction) -> bool:
    return _jump_if(frame, i, False, keeps=True)


# ---- loops


def _get_iter(frame: Frame, i: Instruction) -> None:
    frame.stack.append(frame.stack.pop().iterate(frame.tx))


def _for_iter(frame: Frame, i: Instruction) -> None:
    item = frame.stack[-1].next(frame.tx)
    if item is not None:
        frame.stack.append(item)
        return
    frame.stack.pop()
    frame.pc = i.argval
    if frame.instructions[i.argval].opname == "END_FOR":  # jumped over, with the POP_TOP that follows it in 3.13
        frame.pc += 2 if OPS["END_FOR"].effect == -1 else 1


# ---- leaving


def _return_value(frame: Frame, i: Instruction) -> bool:
    frame.result = frame.stack.pop()
    return LEAVE


def _return_const(frame: Frame, i: Instruction) -> bool:
    frame.result = frame.tx.code_constant(i.argval)
    return LEAVE


def _yield_value(frame: Frame, i: Instruction) -> bool:
    frame.yielded = frame.stack.pop()
    return LEAVE


_MAY_AWAIT = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE


def _get_yield_from_iter(frame: Frame, i: Instruction) -> None:
    iterable = frame.stack[-1]
    if isinstance(iterable, CoroutineValue) and not frame.function_code.co_flags & _MAY_AWAIT:
        what = "cannot 'yield from' a coroutine object in a non-coroutine generator"
        frame.tx.raise_exception(TypeError, what)
    if not isinstance(iterable, GeneratorValue):
        frame.stack.append(frame.stack.pop().iterate(frame.tx))


def _send(frame: Frame, i: Instruction) -> None:
    """One step of `yield from`: continues to YIELD_VALUE with the item, or jumps with the inner generator's result."""
    sent, receiver = frame.stack.pop(), frame.stack[-1]
    item, result = send_into(frame.tx, receiver, sent)
    if item is not None:
        frame.stack.append(item)
        return
    frame.leave_send(i, result)


def _end_send(frame: Frame, i: Instruction) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value


# ---- exceptions


def _raise_varargs(frame: Frame, i: Instruction) -> None:
    tx = frame.tx
    cause = frame.stack.pop() if i.arg == 2 else None
    if not i.arg:
        if tx.exception is None:
            tx.guard_no_exception()
            tx.raise_exception(RuntimeError, "No active exception to reraise")
        raise Raised(tx.exception)
    exception = _instance(frame, frame.stack.pop())
    if cause is not None and isinstance(exception, ObjectValue):
        tx.mutations.store_attr(
            exception, "__cause__", cause if is_none(cause) else _instance(frame, cause, "exception causes")
        )
        tx.mutations.store_attr(exception, "__suppress_context__", boolean(True))
    if tx.exception is not None and tx.exception is not exception:
        tx.raised_while.pop(id(exception), None)  # raised once more, it gets another context
    raise Raised(exception)


_RAISED = "exceptions"


def _instance(frame: Frame, raised: Value, what: str = _RAISED) -> Value:
    """An exception instance: classes of exceptions are called, other classes are not (ceval.c, `do_raise`). what: for the message."""
    if isinstance(raised, ClassValue) and is_subtype(raised.obj, BaseException):
        made = raised.call(frame.tx, [], {})
        if not issubclass(made.python_type(), BaseException):
            if what != _RAISED:  # which CPython keeps as it is
                raise Unsupported("builtin-call", f"an exception from {raised.describe()}")
            answer = f"{raised.obj!r} should have returned an instance of BaseException, not {made.python_type()!r}"
            frame.tx.raise_exception(TypeError, f"calling {answer}")
        return made
    if not issubclass(raised.python_type(), BaseException):
        frame.tx.raise_exception(TypeError, f"{what} must derive from BaseException")
    return raised


def _reraise(frame: Frame, i: Instruction) -> None:
    raise Raised(frame.stack.pop())


def _push_exc_info(frame: Frame, i: Instruction) -> None:
    exception = frame.stack.pop()
    frame.stack.append(frame.tx.exception or NONE)
    frame.stack.append(exception)
    frame.tx.exception = exception


def _pop_except(frame: Frame, i: Instruction) -> None:
    before = frame.stack.pop()
    frame.tx.exception = None if is_none(before) else before


def _check_exc_match(frame: Frame, i: Instruction) -> None:
    wanted = frame.stack.pop()
    frame.stack.append(boolean(matches(frame.tx, frame.stack[-1], wanted)))


def _check_eg_match(frame: Frame, i: Instruction) -> None:
    wanted, exception = frame.stack.pop(), frame.stack.pop()
    matched, rest = match_group(frame.tx, exception, wanted)
    frame.stack += [rest, matched]
    if not is_none(matched):
        frame.tx.exception = matched


def prep_reraise_star(frame: Frame, i: Instruction) -> None:
    """PREP_RERAISE_STAR, and the intrinsic function of later versions."""
    raised, original = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(exception_behind_handlers(frame.tx, original, raised.unpack(frame.tx)))


def _before_with(frame: Frame, i: Instruction) -> None:
    tx, manager = frame.tx, frame.stack.pop()
    if is_outside_lock(manager):
        raise Unsupported("outside-lock", manager.describe())
    enter, leave = special_method(tx, manager, "__enter__"), special_method(tx, manager, "__exit__")
    if enter is None or leave is None:
        name, missed = name_in_messages(manager.python_type()), "" if enter is None else " (missed __exit__ method)"
        tx.raise_exception(TypeError, f"{name!r} object does not support the context manager protocol{missed}")
    frame.stack.append(leave)
    frame.stack.append(enter.call(tx, [], {}))


def _with_except_start(frame: Frame, i: Instruction) -> None:
    exception, leave = frame.stack[-1], frame.stack[-4]
    cls = frame.tx.wrap_known(exception.python_type())
    frame.stack.append(leave.call(frame.tx, [cls, exception, RunTimeTraceback(frame.tx.frames[0].at)], {}))


def _cleanup_throw(frame: Frame, i: Instruction) -> None:
    exception = frame.stack.pop()
    if not issubclass(exception.python_type(), StopIteration):
        raise Raised(exception)
    frame.stack.pop()
    frame.stack[-1] = exception.get_attr(frame.tx, "value")


# ---- pattern matching


def _match_sequence(frame: Frame, i: Instruction) -> None:
    frame.stack.append(boolean(bool(flags_of(frame.stack[-1].python_type()) & (1 << 5))))


def _match_mapping(frame: Frame, i: Instruction) -> None:
    frame.stack.append(boolean(bool(flags_of(frame.stack[-1].python_type()) & (1 << 6))))


def _match_keys(frame: Frame, i: Instruction) -> None:
    tx = frame.tx
    keys, subject = frame.stack[-1], frame.stack[-2]
    mapping = subject.as_dict(tx)
    if mapping is None:
        tx.raise_exception(TypeError, "only dictionaries can be matched while tracing")
    found = [mapping.lookup(tx, key) for key in keys.unpack(tx)]
    missing = any(item is None for item in found)
    frame.stack.append(NONE if missing else TupleValue([item for item in found if item is not None]))


def _match_class(frame: Frame, i: Instruction) -> None:
    tx = frame.tx
    names, cls_value, subject = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    cls = cls_value.constant()
    if not tx.wrap_known(isinstance).call(tx, [subject, cls_value], {}).truth(tx):
        frame.stack.append(NONE)
        return
    attributes = [name.constant() for name in names.unpack(tx)]
    match_args: tuple[str, ...] = getattr(cls, "__match_args__", ())
    if type(match_args) is not tuple or not all(type(name) is str for name in match_args):
        raise Unsupported("raises", f"{cls_value.describe()}.__match_args__")
    positional = match_args[: i.arg or 0]
    items: list[Value] = []
    if i.arg and not positional and is_one_of(cls, _SELF_MATCHING):
        items.append(subject)
    for name in (*positional, *attributes):
        found = _attribute(frame, subject, name)
        if found is None:
            frame.stack.append(NONE)
            return
        items.append(found)
    frame.stack.append(TupleValue(items))


_SELF_MATCHING = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def _attribute(frame: Frame, owner: Value, name: str) -> Value | None:
    try:
        return owner.get_attr(frame.tx, name)
    except Raised as raised:
        if issubclass(raised.value.python_type(), AttributeError):
            return None
        raise


HANDLERS: dict[str, OpHandler] = by_name(
    ("JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT", _jump),
    ("POP_JUMP_FORWARD_IF_TRUE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_IF_TRUE", _pop_jump_if_true),
    ("POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_IF_FALSE", _pop_jump_if_false),
    ("POP_JUMP_FORWARD_IF_NONE POP_JUMP_BACKWARD_IF_NONE POP_JUMP_IF_NONE", _pop_jump_if_none),
    ("POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_IF_NOT_NONE", _pop_jump_if_not_none),
    ("JUMP_IF_TRUE_OR_POP", _jump_if_true_or_pop),
    ("JUMP_IF_FALSE_OR_POP", _jump_if_false_or_pop),
    ("GET_ITER", _get_iter),
    ("FOR_ITER", _for_iter),
    ("RETURN_VALUE", _return_value),
    ("RETURN_CONST", _return_const),
    ("YIELD_VALUE", _yield_value),
    ("GET_YIELD_FROM_ITER", _get_yield_from_iter),
    ("SEND", _send),
    ("END_SEND", _end_send),
    ("RAISE_VARARGS", _raise_varargs),
    ("RERAISE", _reraise),
    ("PUSH_EXC_INFO", _push_exc_info),
    ("POP_EXCEPT", _pop_except),
    ("CHECK_EXC_MATCH", _check_exc_match),
    ("BEFORE_WITH", _before_with),
    ("WITH_EXCEPT_START", _with_except_start),
    ("CLEANUP_THROW", _cleanup_throw),
    ("MATCH_SEQUENCE", _match_sequence),
    ("MATCH_MAPPING", _match_mapping),
    ("MATCH_KEYS", _match_keys),
    ("MATCH_CLASS", _match_class),
    ("CHECK_EG_MATCH", _check_eg_match),
    ("PREP_RERAISE_STAR", prep_reraise_star),
)
