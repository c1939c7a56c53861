"""Operators of built-in containers and of instances of their subclasses: `[1] + [2]`, `(1,) * 2`, `{1} | {2}`, `{1: 2} | {3: 4}`.

Of which type the result is, and which operands are refused, Python says itself (`stand_ins`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.growing import GrownTuple, OutsideTuple
from treadle_tracer.values.mappings import DictValue, DictView
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import ListValue, Sequence, TupleValue
from treadle_tracer.values.sets import SetValue, entries_of, real_result, replace_items
from treadle_tracer.values.stand_ins import result_type
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class Operation(NamedTuple):
    """`left <text> right`.

    text      without the `=` of an operator in place
    function  the function of `operator`
    names     the special methods: `__add__`, `__radd__`, `__iadd__`
    in_place  whether it is `left <text>= right`
    operands  left and right
    """

    text: str
    function: Callable[[Any, Any], Any]
    names: tuple[str, str, str]
    in_place: bool
    operands: tuple[Value, Value]

    @property
    def shown(self) -> str:
        """The operator as the program writes it."""
        return f"{self.text}=" if self.in_place else self.text


def container_operator(tx: TraceContext, operation: Operation) -> Value | None:
    """The result where one of the operands is a container; None where there is no such operator, or a class of the program has its own."""
    left, right = (_built_in_part(tx, value, operation.names) for value in operation.operands)
    if left is None or right is None:
        return None
    for kind in (_sequence_operator, _set_operator, _dict_operator):
        result = kind(tx, operation, left, right)
        if result is not None:
            return next(
                (x for x, part in zip(operation.operands, (left, right), strict=True) if part is result), result
            )
    return None


def _built_in_part(tx: TraceContext, value: Value, names: tuple[str, ...]) -> Value | None:
    """The container of an instance of a subclass that has the operators of its base; other values as they are."""
    if not isinstance(value, ObjectValue) or value.container is None:
        return value
    base = value.container.python_type()
    return value.container if all(lookup(tx, value.cls, n) is lookup(tx, base, n) for n in names) else None


def _type_of_result(tx: TraceContext, operation: Operation, known: tuple[type, ...]) -> type:
    found = result_type(tx, operation.function, operation.names, *operation.operands)
    if not is_one_of(found, known):
        raise Unsupported("new-builtin-subclass", found.__name__)
    return found


# ---- sequences


def _sequence_operator(tx: TraceContext, operation: Operation, a: Value, b: Value) -> Value | None:
    if operation.text == "*":
        return _repeated(tx, operation, *((a, b) if isinstance(a, Sequence) else (b, a)), a)
    if operation.text != "+" or not isinstance(a, Sequence):
        return None
    if isinstance(a, ListValue) and operation.in_place:
        is_exact = operation.operands[0] is a
        if is_exact and not isinstance(b, Sequence) and lookup(tx, b.python_type(), "__radd__") is not MISSING:
            return None  # which is asked before list.__iadd__, but not before that of a subclass
        a.builtin_method(tx, "extend", [b], {})
        return a
    if not isinstance(b, Sequence):
        return None
    cls = _type_of_result(tx, operation, (list, tuple, torch.Size, collections.deque))
    if isinstance(a, ListValue):
        return _list_like(tx, a, cls, [*a.items, *b.items])
    if cls is tuple and is_one_of(a.cls, (tuple,)) and not b.items:
        return a  # tupleobject.c, tupleconcat
    if isinstance(a, (OutsideTuple, GrownTuple)) and a.is_unread and is_one_of(b.cls, (tuple,)):
        return a.grown(b.items)
    if cls is tuple and is_one_of(b.cls, (tuple,)) and not a.items:
        return b
    items = (*a.items, *b.items)
    if cls is torch.Size and not all(is_subtype(item.python_type(), int) for item in items):
        raise Unsupported("raises", "torch.Size of other items than numbers")
    return TupleValue(items, cls)


def _repeated(tx: TraceContext, operation: Operation, sequence: Value, count: Value, left: Value) -> Value | None:
    if not isinstance(count, (Constant, SymbolicValue)) or not isinstance(sequence, Sequence):
        return None
    if not issubclass(count.python_type(), int):
        return None
    if operation.in_place and sequence is not left:
        return None
    times = count.as_index(tx)
    if isinstance(sequence, TupleValue):
        if times == 1 and is_one_of(sequence.cls, (tuple,)):
            return sequence
        return TupleValue(sequence.items * times, sequence.cls if sequence.cls is torch.Size else tuple)
    cls = collections.deque if sequence.cls is collections.deque else list
    repeated = _list_like(tx, sequence, cls, sequence.items * times)
    if not operation.in_place:
        return repeated
    sequence.items[:] = repeated.items
    sequence.changed(tx)  # type: ignore[attr-defined]
    return sequence


def _list_like(tx: TraceContext, old: Any, cls: type, items: list[Value]) -> ListValue:
    """A new list, or deque of the same `maxlen`, of these items."""
    if cls is list:
        return ListValue(items)
    made = ListValue([], collections.deque)
    made.maxlen = old.maxlen
    made.builtin_method(tx, "extend", [ListValue(items)], {})
    return made


# ---- sets


_IN_PLACE = {"|": set.__ior__, "&": set.__iand__, "-": set.__isub__, "^": set.__ixor__}


def _set_operator(tx: TraceContext, operation: Operation, a: Value, b: Value) -> Value | None:
    if not all(isinstance(x, (SetValue, DictView)) for x in (a, b)) or operation.text not in _IN_PLACE:
        return None
    cls = _type_of_result(tx, operation, (set, frozenset))
    if operation.text == "&" and isinstance(a, DictView) and isinstance(b, SetValue) and b.length(tx) >= a.length(tx):
        return b.combined(tx, "&", entries_of(tx, a), cls, is_set=False)  # dictobject.c, _PyDictView_Intersect
    left = SetValue.of(tx, a.unpack(tx)) if isinstance(a, DictView) else a
    result = left.combined(tx, operation.text, entries_of(tx, b), cls)  # type: ignore[union-attr]
    if operation.in_place and isinstance(a, SetValue) and isinstance(b, SetValue) and a.cls is not frozenset:
        replace_items(a, tx, result.entries, _IN_PLACE[operation.text], [b])
        return a
    if isinstance(a, SetValue) and isinstance(b, SetValue):
        result.real = real_result(tx, a, operation.names[0], [b])
    return result


# ---- dicts


def _dict_operator(tx: TraceContext, operation: Operation, a: Value, b: Value) -> Value | None:
    if not isinstance(a, DictValue) or operation.text != "|":
        return None
    if operation.in_place:
        a.update_from(tx, b)
        return a
    if not isinstance(b, DictValue):
        return None
    cls = _type_of_result(tx, operation, (dict, collections.OrderedDict, collections.defaultdict))
    made = DictValue(dict(a.raw_entries(tx)), cls)
    if cls is collections.defaultdict:
        made.default_factory = (a if is_one_of(a.cls, (cls,)) else b).default_factory
    made.update_from(tx, b)
    return made
