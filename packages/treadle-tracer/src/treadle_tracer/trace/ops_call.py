"""Handlers of opcodes that call and that make functions."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING

from treadle_tracer.bytecode.opcodes import NULL_AFTER_CALLABLE
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import InternalError, Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.trace.op_handler import OpHandler, unsupported
from treadle_tracer.trace.ops_data import is_iterable, list_to_tuple, unary_positive
from treadle_tracer.trace.ops_flow import prep_reraise_star
from treadle_tracer.values.base import NULL
from treadle_tracer.values.cells import CellValue
from treadle_tracer.values.exceptions import raise_for_stop_iteration
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tail_calls import tail_call
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame


def _kw_names(frame: Frame, i: Instruction) -> None:
    frame.keyword_names = i.argval


@tail_call
def _call(frame: Frame, i: Instruction) -> None:
    names, frame.keyword_names = frame.keyword_names, ()
    _call_with(frame, i.arg or 0, names)


@tail_call
def _call_kw(frame: Frame, i: Instruction) -> None:
    names = tuple(name.constant() for name in frame.stack.pop().unpack(frame.tx))
    _call_with(frame, i.arg or 0, names)


@tail_call
def _call_with(frame: Frame, count: int, names: tuple[str, ...]) -> None:
    """Call what stands under `count` arguments, the last of them named."""
    args = frame.pop_many(count)
    second, first = frame.stack.pop(), frame.stack.pop()
    if NULL_AFTER_CALLABLE:
        function = first
        if second is not NULL:
            args.insert(0, second)
    else:
        function = second
        if first is not NULL:
            function = first
            args.insert(0, second)
    kwargs: dict[str, Value] = {}
    if names:
        kwargs = dict(zip(names, args[-len(names) :], strict=True))
        del args[-len(names) :]
    frame.called = frame.at, function
    frame.stack.append(function.call(frame.tx, args, kwargs))


@tail_call
def _call_function_ex(frame: Frame, i: Instruction) -> None:
    tx = frame.tx
    keywords = frame.stack.pop() if (i.arg or 0) & 1 else None
    given = frame.stack.pop()
    if not is_iterable(tx, given):
        raise Unsupported("raises", f"*{given.describe()}")  # the text names the function
    args = given.unpack(tx)
    second, first = frame.stack.pop(), frame.stack.pop()
    function = first if NULL_AFTER_CALLABLE else second
    kwargs: dict[str, Value] = {}
    if keywords is not None:
        mapping = keywords.as_dict(tx)
        if mapping is None:
            raise Unsupported("call", f"**{keywords.describe()}")
        kwargs = {key.constant(): value for key, value in mapping.items(tx)}
        if not all(is_subtype(type(key), str) for key in kwargs):
            raise Unsupported("raises", f"keywords that are no strings: **{keywords.describe()}")
    frame.called = frame.at, function
    frame.stack.append(function.call(tx, args, kwargs))


def _make_function(frame: Frame, i: Instruction) -> None:
    code = frame.stack.pop().constant()
    assert isinstance(code, types.CodeType)
    made = FunctionValue(code, frame.globals)
    made.in_root = frame.globals is frame.tx.root_globals
    flags = i.arg or 0
    if flags & 8:
        _set_closure(frame, made, frame.stack.pop())
    if flags & 4:
        _set_annotations(frame, made, frame.stack.pop())
    if flags & 2:
        _set_keyword_defaults(frame, made, frame.stack.pop())
    if flags & 1:
        _set_defaults(frame, made, frame.stack.pop())
    frame.stack.append(made)


def _set_closure(frame: Frame, made: FunctionValue, cells: Value) -> None:
    assert isinstance(cells, TupleValue)
    made.closure = tuple(cell for cell in cells.items if isinstance(cell, CellValue))
    if len(made.closure) != len(cells.items):
        raise InternalError("trace", f"the closure of {made.code.co_qualname} holds something other than cells")


def _set_annotations(frame: Frame, made: FunctionValue, flat: Value) -> None:
    """Annotations come as a tuple: name, value, name, value ..."""
    items = flat.unpack(frame.tx)
    made.annotations = {name.constant(): item for name, item in zip(items[::2], items[1::2], strict=True)}


def _set_keyword_defaults(frame: Frame, made: FunctionValue, defaults: Value) -> None:
    assert isinstance(defaults, DictValue)
    made.kwdefaults = {key.constant(): value for key, value in defaults.items(frame.tx)}


def _set_defaults(frame: Frame, made: FunctionValue, defaults: Value) -> None:
    made.defaults = list(defaults.unpack(frame.tx))


def _set_function_attribute(frame: Frame, i: Instruction) -> None:
    made, value = frame.stack.pop(), frame.stack.pop()
    assert isinstance(made, FunctionValue)
    setter = {1: _set_defaults, 2: _set_keyword_defaults, 4: _set_annotations, 8: _set_closure}[i.arg or 0]
    setter(frame, made, value)
    frame.stack.append(made)


def _call_intrinsic_1(frame: Frame, i: Instruction) -> None:
    what = i.argval
    if what == "INTRINSIC_LIST_TO_TUPLE":
        list_to_tuple(frame, i)
    elif what == "INTRINSIC_UNARY_POSITIVE":
        unary_positive(frame, i)
    elif what == "INTRINSIC_STOPITERATION_ERROR":
        _stop_iteration_error(frame)
    else:
        raise Unsupported("opcode", what)


def _call_intrinsic_2(frame: Frame, i: Instruction) -> None:
    if i.argval != "INTRINSIC_PREP_RERAISE_STAR":
        raise Unsupported("opcode", i.argval)
    prep_reraise_star(frame, i)


def _stop_iteration_error(frame: Frame) -> None:
    """A StopIteration that leaves a generator or coroutine becomes a RuntimeError."""
    exception = frame.stack[-1]
    if issubclass(exception.python_type(), StopIteration):
        kind = "coroutine" if frame.function_code.co_flags & inspect.CO_COROUTINE else "generator"
        raise_for_stop_iteration(frame.tx, kind, exception)


HANDLERS: dict[str, OpHandler] = by_name(
    ("KW_NAMES", _kw_names),
    ("CALL", _call),
    ("CALL_KW", _call_kw),
    ("CALL_FUNCTION_EX", _call_function_ex),
    ("MAKE_FUNCTION", _make_function),
    ("SET_FUNCTION_ATTRIBUTE", _set_function_attribute),
    ("CALL_INTRINSIC_1", _call_intrinsic_1),
    ("CALL_INTRINSIC_2", _call_intrinsic_2),
    ("IMPORT_STAR PRINT_EXPR", unsupported("statements of a module body")),
)
