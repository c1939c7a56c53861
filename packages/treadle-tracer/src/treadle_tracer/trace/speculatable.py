"""The table of instructions that may be evaluated on a path that the program may turn out not to take: those without effects.

An effect is whatever the program could see later: a write to an object that exists already, an iterator moved on, a tensor
operation. Reading an outside object is no effect. It adds guards, and they hold for the present call.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.bytecode.opcodes import NULL_AFTER_CALLABLE
from treadle_tracer.tables import by_name
from treadle_tracer.values.base import NULL, ConcreteValue, Constant, Method
from treadle_tracer.values.callables import CallableValue
from treadle_tracer.values.functions import BoundMethod, FunctionValue
from treadle_tracer.values.graph_functions import goes_into_graph
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.rules.table import rule_of
from treadle_tracer.values.sequences import ListValue, SliceValue, TupleValue
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.tensor import METADATA, SymbolicValue, TensorValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame

Test = Callable[["Frame", "Instruction"], bool]


def why_not_speculatable(frame: Frame, instruction: Instruction, computes: bool) -> str | None:
    """Why the frame's next instruction must not be evaluated on a path that may not be taken. `computes`: tensors may be made."""
    test = _TESTS.get(instruction.opname)
    if test is None:
        return f"{instruction.opname} has an effect"
    if test is _always or test(frame, instruction) or (computes and _makes_tensor_only(frame, instruction)):
        return None
    return f"{instruction.opname} has an effect on these operands"


def _always(frame: Frame, i: Instruction) -> bool:
    return True


def _is_plain(value: Value) -> bool:
    """Numbers, strings, None and tuples of such: operators on them are pure."""
    if isinstance(value, TupleValue):
        return all(map(_is_plain, value.items))
    return isinstance(value, (ConcreteValue, SymbolicValue))


def _testable(frame: Frame, i: Instruction) -> bool:
    """Not a tensor, whose truth depends on its elements."""
    return not isinstance(frame.stack[-1], TensorValue)


def _top_is_plain(frame: Frame, i: Instruction) -> bool:
    return _is_plain(frame.stack[-1])


def _both_are_plain(frame: Frame, i: Instruction) -> bool:
    return all(map(_is_plain, frame.stack[-2:]))


def _arithmetic(frame: Frame, i: Instruction) -> bool:
    """Every operator of constants, and those operators of symbolic numbers that never raise."""
    operands = frame.stack[-2:]
    if all(isinstance(operand, Constant) for operand in operands):
        return True
    return i.argval.removesuffix("=") in ("+", "-", "*") and all(
        isinstance(operand, (Constant, SymbolicValue)) for operand in operands
    )


def _membership(frame: Frame, i: Instruction) -> bool:
    container, item = frame.stack[-1], frame.stack[-2]
    if not isinstance(item, ConcreteValue):
        return False
    if isinstance(container, (TupleValue, ListValue)):
        return all(map(_is_plain, container.items))
    return isinstance(container, (Constant, SetValue)) or (isinstance(container, DictValue) and container.cls is dict)


def _attribute(frame: Frame, i: Instruction) -> bool:
    if not isinstance(frame.stack[-1], TensorValue):
        return True
    return i.argval in METADATA or _asks_for_metadata(i.argval) or is_speculatable(i.argval)


def _asks_for_metadata(name: str) -> bool:
    """Whether the method of a tensor answers from its metadata, the strides aside."""
    known = operator_record(name)
    return known is not None and known.is_query and not known.reads_layout


def _item(frame: Frame, i: Instruction) -> bool:
    owner, key = frame.stack[-2], frame.stack[-1]
    if not isinstance(key, Constant):
        return False
    return isinstance(owner, (TupleValue, ListValue)) or (isinstance(owner, DictValue) and owner.cls is dict)


def _slice(frame: Frame, i: Instruction) -> bool:
    """`owner[start:stop]`, since Python 3.12 one instruction."""
    return isinstance(frame.stack[-3], TupleValue) and all(isinstance(part, Constant) for part in frame.stack[-2:])


def _unpacking(frame: Frame, i: Instruction) -> bool:
    return isinstance(frame.stack[-1], (TupleValue, ListValue))


def _import(frame: Frame, i: Instruction) -> bool:
    """The module is loaded already, so the import runs nothing."""
    level = frame.stack[-2]
    return level.is_constant() and level.constant() == 0 and i.argval in sys.modules


# ---- calls


def _callee(frame: Frame, i: Instruction) -> tuple[Value, list[Value]]:
    """The callable of a CALL, and its positional and named arguments."""
    stack = frame.stack[:-1] if i.opname == "CALL_KW" else frame.stack
    at = len(stack) - (i.arg or 0) - 2
    first, second = stack[at : at + 2]
    if NULL_AFTER_CALLABLE:
        return first, [*([] if second is NULL else [second]), *stack[at + 2 :]]
    return (second, stack[at + 2 :]) if first is NULL else (first, stack[at + 1 :])


def _call(frame: Frame, i: Instruction) -> bool:
    function, args = _callee(frame, i)
    if isinstance(function, BoundMethod):
        function = function.function
    if isinstance(function, FunctionValue):
        return True  # evaluated in place, instruction by instruction, under the same rules
    if isinstance(function, CallableValue):
        return _is_effect_free(function.obj)
    return isinstance(function, Method) and _is_effect_free_method(function, args)


def _is_effect_free(obj: Any) -> bool:
    """Functions whose rule has no effect, and cached functions of Python."""
    rule = rule_of(obj)
    if rule is not None:
        return rule.is_speculatable
    if isinstance(obj, functools._lru_cache_wrapper):
        inner = obj.__wrapped__
        return isinstance(inner, types.FunctionType) and rule_of(inner) is None and not goes_into_graph(inner)
    return False


def _is_effect_free_method(method: Method, args: list[Value]) -> bool:
    if isinstance(method.owner, Constant):
        return all(isinstance(arg, Constant) for arg in args)
    if not all(map(_is_plain, args)):
        return False
    if isinstance(method.owner, TensorValue):
        return _asks_for_metadata(method.name)
    return isinstance(method.owner, DictValue) and method.name == "get"


# ---- operators


def is_speculatable(target: Any) -> bool:
    """Whether a call of a torch function, or of the tensor method of this name, may be made although its result may not be needed."""
    known = operator_record(target)
    return known is not None and known.is_speculatable


def _makes_tensor_only(frame: Frame, i: Instruction) -> bool:
    """Whether the instruction calls an operator whose record says that it may be run for nothing."""
    if i.opname in ("CALL", "CALL_KW"):
        function, args = _callee(frame, i)
        operands = [*args, function.owner] if isinstance(function, Method) else args
        name = function.name if isinstance(function, Method) else getattr(function, "obj", None)
        known = isinstance(function, (Method, CallableValue)) and is_speculatable(name)
    elif i.opname == "COMPARE_OP":
        operands, known = frame.stack[-2:], True
    elif i.opname == "BINARY_SUBSCR":
        operands, known = frame.stack[-2:-1], _is_range_key(frame.stack[-1])
    elif i.opname == "BINARY_SLICE":
        operands, known = frame.stack[-3:-2], all(map(_is_plain, frame.stack[-2:]))
    else:
        return False
    return known and all(isinstance(operand, TensorValue) or _is_plain(operand) for operand in operands)


def _is_range_key(key: Value) -> bool:
    """An index of slices, None and `...`, which is never out of range."""
    if isinstance(key, TupleValue):
        return all(map(_is_range_key, key.items))
    if isinstance(key, SliceValue):
        return all(map(_is_plain, key.parts))
    return key.__class__ is Constant and (
        key.constant() is None or key.constant() is ... or type(key.constant()) is slice
    )


_TESTS: dict[str, Test] = by_name(
    (
        "NOP RESUME PRECALL COPY_FREE_VARS MAKE_CELL POP_TOP PUSH_NULL COPY SWAP LOAD_CONST LOAD_FAST LOAD_FAST_CHECK "
        "LOAD_FAST_AND_CLEAR STORE_FAST LOAD_FAST_LOAD_FAST STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST DELETE_FAST "
        "LOAD_CLOSURE LOAD_DEREF LOAD_GLOBAL LOAD_ASSERTION_ERROR IS_OP KW_NAMES BUILD_TUPLE BUILD_SLICE "
        "RETURN_VALUE RETURN_CONST JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT IMPORT_FROM",
        _always,
    ),
    ("UNARY_NOT TO_BOOL JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP", _testable),
    ("POP_JUMP_IF_TRUE POP_JUMP_FORWARD_IF_TRUE POP_JUMP_BACKWARD_IF_TRUE", _testable),
    ("POP_JUMP_IF_FALSE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_BACKWARD_IF_FALSE", _testable),
    ("POP_JUMP_IF_NONE POP_JUMP_FORWARD_IF_NONE POP_JUMP_BACKWARD_IF_NONE", _always),
    ("POP_JUMP_IF_NOT_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_NOT_NONE", _always),
    ("LOAD_ATTR LOAD_METHOD", _attribute),
    ("COMPARE_OP", _both_are_plain),
    ("CONTAINS_OP", _membership),
    ("BINARY_OP", _arithmetic),
    ("UNARY_NEGATIVE", _top_is_plain),
    ("BINARY_SUBSCR", _item),
    ("BINARY_SLICE", _slice),
    ("UNPACK_SEQUENCE", _unpacking),
    ("IMPORT_NAME", _import),
    ("CALL CALL_KW", _call),
)
"""By opcode name: whether the instruction has no effect on the operands on the stack."""
