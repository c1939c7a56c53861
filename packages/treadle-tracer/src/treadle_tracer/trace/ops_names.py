"""Handlers of opcodes of code whose variables stand in a namespace: the body of a class, the text of `exec` and `eval`."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from treadle_tracer.source import ConstSource, DictItemSource
from treadle_tracer.tables import by_name
from treadle_tracer.trace.op_handler import OpHandler
from treadle_tracer.values.base import Constant
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.value import Raised, Value

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame


def _load_build_class(frame: Frame, i: Instruction) -> None:
    scope = frame.globals.get("__builtins__", builtins)
    scope = scope if isinstance(scope, dict) else vars(scope)
    source = DictItemSource(ConstSource(scope, "builtins"), "__build_class__")
    frame.stack.append(frame.tx.wrap(scope["__build_class__"], source))


def _namespace(frame: Frame) -> Value:
    assert frame.namespace is not None
    return frame.namespace


def _item(frame: Frame, namespace: Value, name: str) -> Value | None:
    """The variable, or None."""
    if isinstance(namespace, DictValue):
        return namespace.lookup(frame.tx, Constant(name))
    try:
        return namespace.get_item(frame.tx, Constant(name))
    except Raised as raised:
        if not issubclass(raised.value.python_type(), KeyError):
            raise
        return None


def _load_name(frame: Frame, i: Instruction) -> None:
    found = _item(frame, _namespace(frame), i.argval)
    frame.stack.append(frame.tx.load_global(frame.globals, i.argval) if found is None else found)


def _store_name(frame: Frame, i: Instruction) -> None:
    _namespace(frame).set_item(frame.tx, Constant(i.argval), frame.stack.pop())


def _delete_name(frame: Frame, i: Instruction) -> None:
    if _item(frame, _namespace(frame), i.argval) is None:
        frame.tx.raise_exception(NameError, f"name {i.argval!r} is not defined")
    _namespace(frame).del_item(frame.tx, Constant(i.argval))


def _load_locals(frame: Frame, i: Instruction) -> None:
    frame.stack.append(_namespace(frame))


def _load_classderef(frame: Frame, i: Instruction) -> None:
    _load_or_deref(frame, _namespace(frame), i.argval)


def _load_from_dict_or_deref(frame: Frame, i: Instruction) -> None:
    _load_or_deref(frame, frame.stack.pop(), i.argval)


def _load_or_deref(frame: Frame, namespace: Value, name: str) -> None:
    found = _item(frame, namespace, name)
    found = frame.cells[name].load(frame.tx) if found is None else found
    if found is None:
        text = f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
        frame.tx.raise_exception(NameError, text)
    frame.stack.append(found)


def _load_from_dict_or_globals(frame: Frame, i: Instruction) -> None:
    found = _item(frame, frame.stack.pop(), i.argval)
    frame.stack.append(frame.tx.load_global(frame.globals, i.argval) if found is None else found)


def _setup_annotations(frame: Frame, i: Instruction) -> None:
    if _item(frame, _namespace(frame), "__annotations__") is None:
        _namespace(frame).set_item(frame.tx, Constant("__annotations__"), DictValue())


HANDLERS: dict[str, OpHandler] = by_name(
    ("LOAD_BUILD_CLASS", _load_build_class),
    ("LOAD_NAME", _load_name),
    ("STORE_NAME", _store_name),
    ("DELETE_NAME", _delete_name),
    ("LOAD_LOCALS", _load_locals),
    ("LOAD_CLASSDEREF", _load_classderef),
    ("LOAD_FROM_DICT_OR_DEREF", _load_from_dict_or_deref),
    ("LOAD_FROM_DICT_OR_GLOBALS", _load_from_dict_or_globals),
    ("SETUP_ANNOTATIONS", _setup_annotations),
)
