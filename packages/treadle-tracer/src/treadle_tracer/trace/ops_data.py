"""Handlers of opcodes that move, build and combine values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_tracer.bytecode.opcodes import compare_converts_to_bool
from treadle_tracer.class_facts import name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.tables import by_name
from treadle_tracer.trace.op_handler import OpHandler
from treadle_tracer.values import module_attributes, protocol
from treadle_tracer.values.base import NONE, NULL, Constant, boolean
from treadle_tracer.values.cells import CellValue
from treadle_tracer.values.class_lookup import MISSING, has_special, lookup
from treadle_tracer.values.deferred_text import joined_text
from treadle_tracer.values.identity import identity
from treadle_tracer.values.iteration import IteratorValue
from treadle_tracer.values.joined import undecided_truth
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.sequences import ListValue, TupleValue, make_slice
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.tensor_numbers import truth_value
from treadle_tracer.values.text import format_value, to_ascii, to_repr, to_str
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame


# ---- stack and locals


def _nop(frame: Frame, i: Instruction) -> None:
    pass


def _pop_top(frame: Frame, i: Instruction) -> None:
    frame.stack.pop()


def _push_null(frame: Frame, i: Instruction) -> None:
    frame.stack.append(NULL)


def _copy(frame: Frame, i: Instruction) -> None:
    frame.stack.append(frame.stack[-i.arg])  # type: ignore[operator]


def _swap(frame: Frame, i: Instruction) -> None:
    stack, depth = frame.stack, i.arg or 0
    stack[-1], stack[-depth] = stack[-depth], stack[-1]


def _load_const(frame: Frame, i: Instruction) -> None:
    frame.stack.append(frame.tx.code_constant(i.argval))


def _load_fast(frame: Frame, i: Instruction) -> None:
    frame.stack.append(frame.load_local(i.argval))


def _load_fast_and_clear(frame: Frame, i: Instruction) -> None:
    name = i.argval
    if name in frame.cells and name not in frame.program.model.freevars:  # a free variable has a slot apart
        frame.stack.append(frame.cells.pop(name))
        return
    value = frame.locals.pop(name, None)
    frame.stack.append(NULL if value is None else value)


def _store_fast(frame: Frame, i: Instruction) -> None:
    _store(frame, i.argval, frame.stack.pop())


def _store(frame: Frame, name: str, value: Value) -> None:
    if value is NULL:  # restores a variable that was unbound around an inlined comprehension
        frame.locals.pop(name, None)
    elif isinstance(value, CellValue) and name in frame.cell_names:
        frame.cells[name] = value
        frame.locals.pop(name, None)  # an inlined comprehension has used the cell's slot for a variable of its own
    else:
        frame.locals[name] = value


def _load_fast_load_fast(frame: Frame, i: Instruction) -> None:
    first, second = i.argval
    frame.stack.append(frame.load_local(first))
    frame.stack.append(frame.load_local(second))


def _store_fast_load_fast(frame: Frame, i: Instruction) -> None:
    first, second = i.argval
    _store(frame, first, frame.stack.pop())
    frame.stack.append(frame.load_local(second))


def _store_fast_store_fast(frame: Frame, i: Instruction) -> None:
    first, second = i.argval
    _store(frame, first, frame.stack.pop())
    _store(frame, second, frame.stack.pop())


def _delete_fast(frame: Frame, i: Instruction) -> None:
    frame.load_local(i.argval)
    del frame.locals[i.argval]


# ---- cells


def _make_cell(frame: Frame, i: Instruction) -> None:
    frame.cells[i.argval] = CellValue(frame.locals.pop(i.argval, None))


def _load_closure(frame: Frame, i: Instruction) -> None:
    frame.stack.append(frame.cells[i.argval])


def _load_deref(frame: Frame, i: Instruction) -> None:
    value = frame.cells[i.argval].load(frame.tx)
    if value is None:
        frame.tx.raise_exception(
            NameError,
            f"cannot access free variable {i.argval!r} where it is not associated with a value in enclosing scope",
        )
    frame.stack.append(value)


def _store_deref(frame: Frame, i: Instruction) -> None:
    frame.cells[i.argval].store(frame.tx, frame.stack.pop())


def _delete_deref(frame: Frame, i: Instruction) -> None:
    frame.cells[i.argval].store(frame.tx, None)


# ---- names


def _load_global(frame: Frame, i: Instruction) -> None:
    frame.push_callable(frame.tx.load_global(frame.globals, i.argval), i.flag_bits & 1)


def _store_global(frame: Frame, i: Instruction) -> None:
    frame.tx.store_global(frame.globals, i.argval, frame.stack.pop())


def _delete_global(frame: Frame, i: Instruction) -> None:
    frame.tx.load_global(frame.globals, i.argval)
    frame.tx.store_global(frame.globals, i.argval, frame.tx.deleted)


def _import_name(frame: Frame, i: Instruction) -> None:
    names, level = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(module_attributes.import_name(frame.tx, frame.globals, i.argval, names, level.constant()))


def _import_from(frame: Frame, i: Instruction) -> None:
    frame.stack.append(module_attributes.import_from(frame.tx, frame.stack[-1], i.argval))


# ---- attributes and items


def _load_attr(frame: Frame, i: Instruction) -> None:
    value = frame.stack.pop().get_attr(frame.tx, i.argval)
    if i.flag_bits & 1:
        frame.push_callable(value, 1)
    else:
        frame.stack.append(value)


def _load_method(frame: Frame, i: Instruction) -> None:
    frame.push_callable(frame.stack.pop().get_attr(frame.tx, i.argval), 1)


def _load_super_attr(frame: Frame, i: Instruction) -> None:
    instance, cls, super_ = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    found = super_.call(frame.tx, [cls, instance], {}).get_attr(frame.tx, i.argval)
    if i.flag_bits & 1:
        frame.push_callable(found, 1)
    else:
        frame.stack.append(found)


def _store_attr(frame: Frame, i: Instruction) -> None:
    owner, value = frame.stack.pop(), frame.stack.pop()
    owner.set_attr(frame.tx, i.argval, value)


def _delete_attr(frame: Frame, i: Instruction) -> None:
    frame.stack.pop().del_attr(frame.tx, i.argval)


def _binary_subscr(frame: Frame, i: Instruction) -> None:
    key, owner = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(owner.get_item(frame.tx, key))


def _store_subscr(frame: Frame, i: Instruction) -> None:
    key, owner, value = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    owner.set_item(frame.tx, key, value)


def _delete_subscr(frame: Frame, i: Instruction) -> None:
    key, owner = frame.stack.pop(), frame.stack.pop()
    owner.del_item(frame.tx, key)


def _binary_slice(frame: Frame, i: Instruction) -> None:
    stop, start, owner = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    frame.stack.append(owner.get_item(frame.tx, make_slice([start, stop])))


def _store_slice(frame: Frame, i: Instruction) -> None:
    stop, start, owner, value = (frame.stack.pop() for _ in range(4))
    owner.set_item(frame.tx, make_slice([start, stop]), value)


# ---- operators


def _binary_op(frame: Frame, i: Instruction) -> None:
    b, a = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(frame.tx.binary_op(i.argval, a, b))


def _compare_op(frame: Frame, i: Instruction) -> None:
    b, a = frame.stack.pop(), frame.stack.pop()
    result = frame.tx.compare(i.argval, a, b)
    frame.stack.append(_as_bool(frame, result) if compare_converts_to_bool(i.arg or 0) else result)


_TESTING_JUMPS = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"})


def _as_bool(frame: Frame, value: Value) -> Value:
    """`bool(value)`; an undecided or unbacked truth stays symbolic. What the next instruction tests is left to it, as before 3.13."""
    if frame.instructions[frame.pc].opname in _TESTING_JUMPS:
        return value
    found = undecided_truth(frame.tx, value) or truth_value(frame.tx, value)
    return boolean(value.truth(frame.tx)) if found is None else found


def _is_op(frame: Frame, i: Instruction) -> None:
    b, a = frame.stack.pop(), frame.stack.pop()
    found = identity(frame.tx, a, b)
    frame.stack.append(protocol.not_(frame.tx, found) if i.arg else found)


def _contains_op(frame: Frame, i: Instruction) -> None:
    container, item = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(boolean(container.contains(frame.tx, item) != bool(i.arg)))


def _unary_not(frame: Frame, i: Instruction) -> None:
    frame.stack.append(protocol.not_(frame.tx, frame.stack.pop()))


def _to_bool(frame: Frame, i: Instruction) -> None:
    frame.stack.append(_as_bool(frame, frame.stack.pop()))


def _unary_negative(frame: Frame, i: Instruction) -> None:
    frame.stack.append(protocol.unary_op(frame.tx, "-", frame.stack.pop()))


def unary_positive(frame: Frame, i: Instruction) -> None:
    frame.stack.append(protocol.unary_op(frame.tx, "+", frame.stack.pop()))


def _unary_invert(frame: Frame, i: Instruction) -> None:
    frame.stack.append(protocol.unary_op(frame.tx, "~", frame.stack.pop()))


# ---- building


def _build_tuple(frame: Frame, i: Instruction) -> None:
    frame.stack.append(TupleValue(frame.pop_many(i.arg or 0)))


def _build_list(frame: Frame, i: Instruction) -> None:
    frame.stack.append(ListValue(frame.pop_many(i.arg or 0)))


def _build_set(frame: Frame, i: Instruction) -> None:
    frame.stack.append(SetValue.of(frame.tx, frame.pop_many(i.arg or 0)))


def _build_map(frame: Frame, i: Instruction) -> None:
    flat = frame.pop_many(2 * (i.arg or 0))
    made = DictValue()
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        made.set_item(frame.tx, key, value)
    frame.stack.append(made)


def _build_const_key_map(frame: Frame, i: Instruction) -> None:
    keys = frame.stack.pop().unpack(frame.tx)
    made = DictValue()
    for key, value in zip(keys, frame.pop_many(i.arg or 0), strict=True):
        made.set_item(frame.tx, key, value)
    frame.stack.append(made)


def _build_slice(frame: Frame, i: Instruction) -> None:
    frame.stack.append(make_slice(frame.pop_many(i.arg or 2)))


def _build_string(frame: Frame, i: Instruction) -> None:
    frame.stack.append(joined_text(frame.tx, frame.pop_many(i.arg or 0)))


def _format_value(frame: Frame, i: Instruction) -> None:
    flags = i.arg or 0
    spec = frame.stack.pop() if flags & 4 else Constant("")
    frame.stack.append(format_value(frame.tx, _converted(frame, frame.stack.pop(), flags & 3), spec))


def _convert_value(frame: Frame, i: Instruction) -> None:
    frame.stack.append(_converted(frame, frame.stack.pop(), i.arg or 0))


def _converted(frame: Frame, value: Value, how: int) -> Value:
    """!s (1), !r (2) or !a (3) of an f-string."""
    if how == 0:
        return value
    if how == 1:
        return to_str(frame.tx, value)
    return to_repr(frame.tx, value) if how == 2 else to_ascii(frame.tx, value)


def _format_simple(frame: Frame, i: Instruction) -> None:
    frame.stack.append(format_value(frame.tx, frame.stack.pop(), Constant("")))


def _format_with_spec(frame: Frame, i: Instruction) -> None:
    spec, value = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(format_value(frame.tx, value, spec))


def _list_append(frame: Frame, i: Instruction) -> None:
    item = frame.stack.pop()
    frame.stack[-(i.arg or 0)].builtin_method(frame.tx, "append", [item], {})


def _list_extend(frame: Frame, i: Instruction) -> None:
    items = frame.stack.pop()
    if not is_iterable(frame.tx, items):
        # What is said depends on whether it is an argument.
        raise Unsupported("raises", f"*{items.describe()}")
    frame.stack[-(i.arg or 0)].builtin_method(frame.tx, "extend", [items], {})


def _set_add(frame: Frame, i: Instruction) -> None:
    item = frame.stack.pop()
    frame.stack[-(i.arg or 0)].builtin_method(frame.tx, "add", [item], {})


def _set_update(frame: Frame, i: Instruction) -> None:
    items = frame.stack.pop()
    frame.stack[-(i.arg or 0)].builtin_method(frame.tx, "update", [items], {})


def _map_add(frame: Frame, i: Instruction) -> None:
    value, key = frame.stack.pop(), frame.stack.pop()
    frame.stack[-(i.arg or 0)].set_item(frame.tx, key, value)


def _dict_update(frame: Frame, i: Instruction) -> None:
    other = frame.stack.pop()
    target: Any = frame.stack[-(i.arg or 0)]
    if not _is_mapping(frame.tx, other):
        name = name_in_messages(other.python_type())
        frame.tx.raise_exception(TypeError, f"{name!r} object is not a mapping")
    target.update_from(frame.tx, other)


def _is_mapping(tx: Any, value: Value) -> bool:
    return value.as_dict(tx) is not None or lookup(tx, value.python_type(), "keys") is not MISSING


def _dict_merge(frame: Frame, i: Instruction) -> None:
    other = frame.stack.pop()
    target: Any = frame.stack[-(i.arg or 0)]
    tx = frame.tx
    if not _is_mapping(tx, other):
        raise Unsupported("raises", f"**{other.describe()}")
    mapping = other.as_dict(tx)
    if mapping is None:
        mapping = DictValue()
        mapping.update_from(tx, other)
    for key, value in mapping.items(tx):
        if target.contains(tx, key):
            tx.raise_exception(TypeError, f"got multiple values for keyword argument {key.constant()!r}")
        target.set_item(tx, key, value)


def list_to_tuple(frame: Frame, i: Instruction) -> None:
    frame.stack.append(TupleValue(frame.stack.pop().unpack(frame.tx)))


def is_iterable(tx: Any, value: Value) -> bool:
    """Whether the class has what iteration asks for."""
    return has_special(tx, value.python_type(), "__iter__", "__getitem__")


def _unpack_sequence(frame: Frame, i: Instruction) -> None:
    wanted = i.arg or 0
    items = _unpacked(frame, frame.stack.pop(), wanted + 1)  # ceval.c, unpack_iterable: no more are taken
    if len(items) < wanted:
        frame.tx.raise_exception(ValueError, f"not enough values to unpack (expected {wanted}, got {len(items)})")
    if len(items) > wanted:
        frame.tx.raise_exception(ValueError, f"too many values to unpack (expected {wanted})")
    frame.stack.extend(reversed(items))


def _unpacked(frame: Frame, value: Value, most: int | None = None) -> list[Value]:
    """The items, or the first `most` of them."""
    tx = frame.tx
    if not is_iterable(tx, value):
        tx.raise_exception(TypeError, f"cannot unpack non-iterable {name_in_messages(value.python_type())} object")
    iterator: Any = value.iterate(tx)
    if most is None or not isinstance(iterator, IteratorValue):
        return iterator.unpack(tx)
    items: list[Value] = []
    while len(items) < most and (item := iterator.next(tx)) is not None:
        items.append(item)
    return items


def _unpack_ex(frame: Frame, i: Instruction) -> None:
    items = _unpacked(frame, frame.stack.pop())
    before, after = (i.arg or 0) & 0xFF, (i.arg or 0) >> 8
    if len(items) < before + after:
        frame.tx.raise_exception(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    end = len(items) - after
    frame.stack.extend(reversed([*items[:before], ListValue(items[before:end]), *items[end:]]))


def _get_len(frame: Frame, i: Instruction) -> None:
    frame.stack.append(Constant(frame.stack[-1].length(frame.tx)))


def _load_assertion_error(frame: Frame, i: Instruction) -> None:
    frame.stack.append(frame.tx.wrap_known(AssertionError))


def _return_generator(frame: Frame, i: Instruction) -> None:
    frame.stack.append(NONE)


HANDLERS: dict[str, OpHandler] = by_name(
    ("NOP RESUME PRECALL COPY_FREE_VARS", _nop),
    ("POP_TOP END_FOR", _pop_top),
    ("PUSH_NULL", _push_null),
    ("COPY", _copy),
    ("SWAP", _swap),
    ("LOAD_CONST", _load_const),
    ("LOAD_FAST LOAD_FAST_CHECK", _load_fast),
    ("LOAD_FAST_AND_CLEAR", _load_fast_and_clear),
    ("STORE_FAST", _store_fast),
    ("LOAD_FAST_LOAD_FAST", _load_fast_load_fast),
    ("STORE_FAST_LOAD_FAST", _store_fast_load_fast),
    ("STORE_FAST_STORE_FAST", _store_fast_store_fast),
    ("DELETE_FAST", _delete_fast),
    ("MAKE_CELL", _make_cell),
    ("LOAD_CLOSURE", _load_closure),
    ("LOAD_DEREF", _load_deref),
    ("STORE_DEREF", _store_deref),
    ("DELETE_DEREF", _delete_deref),
    ("LOAD_GLOBAL", _load_global),
    ("STORE_GLOBAL", _store_global),
    ("DELETE_GLOBAL", _delete_global),
    ("IMPORT_NAME", _import_name),
    ("IMPORT_FROM", _import_from),
    ("LOAD_ATTR", _load_attr),
    ("LOAD_METHOD", _load_method),
    ("LOAD_SUPER_ATTR", _load_super_attr),
    ("STORE_ATTR", _store_attr),
    ("DELETE_ATTR", _delete_attr),
    ("BINARY_SUBSCR", _binary_subscr),
    ("STORE_SUBSCR", _store_subscr),
    ("DELETE_SUBSCR", _delete_subscr),
    ("BINARY_SLICE", _binary_slice),
    ("STORE_SLICE", _store_slice),
    ("BINARY_OP", _binary_op),
    ("COMPARE_OP", _compare_op),
    ("IS_OP", _is_op),
    ("CONTAINS_OP", _contains_op),
    ("UNARY_NOT", _unary_not),
    ("TO_BOOL", _to_bool),
    ("UNARY_NEGATIVE", _unary_negative),
    ("UNARY_POSITIVE", unary_positive),
    ("UNARY_INVERT", _unary_invert),
    ("BUILD_TUPLE", _build_tuple),
    ("BUILD_LIST", _build_list),
    ("BUILD_SET", _build_set),
    ("BUILD_MAP", _build_map),
    ("BUILD_CONST_KEY_MAP", _build_const_key_map),
    ("BUILD_SLICE", _build_slice),
    ("BUILD_STRING", _build_string),
    ("FORMAT_VALUE", _format_value),
    ("CONVERT_VALUE", _convert_value),
    ("FORMAT_SIMPLE", _format_simple),
    ("FORMAT_WITH_SPEC", _format_with_spec),
    ("LIST_APPEND", _list_append),
    ("LIST_EXTEND", _list_extend),
    ("SET_ADD", _set_add),
    ("SET_UPDATE", _set_update),
    ("MAP_ADD", _map_add),
    ("DICT_UPDATE", _dict_update),
    ("DICT_MERGE", _dict_merge),
    ("LIST_TO_TUPLE", list_to_tuple),
    ("UNPACK_SEQUENCE", _unpack_sequence),
    ("UNPACK_EX", _unpack_ex),
    ("GET_LEN", _get_len),
    ("LOAD_ASSERTION_ERROR", _load_assertion_error),
    ("RETURN_GENERATOR", _return_generator),
)
