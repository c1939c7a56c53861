"""Rules of `copy.copy` and `copy.deepcopy`."""

from __future__ import annotations

import collections
import copy
import copyreg
import types
from typing import TYPE_CHECKING

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

from treadle_tracer.class_facts import is_subtype, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import OwnDictSource
from treadle_tracer.values.base import ConcreteValue
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.instance_dict import InstanceDict
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.rules.rule import Args, Kwargs, Rule
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.stand_ins import is_of_program
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.value import Raised, Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def _copy(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, (ConcreteValue, TupleValue, FunctionValue)):
        return value
    if isinstance(value, (ListValue, DictValue, SetValue)):
        _refuse_attributes(tx, value)
        return value.builtin_method(tx, "copy", [], {})
    if isinstance(value, ObjectValue):
        if lookup(tx, value.cls, "__copy__") is not MISSING:
            return call_special(tx, value, "__copy__", [])
        made = _empty_copy(tx, value, "_copy_dispatch")
        for name, item in InstanceDict.of(tx, value).named_items(tx):
            tx.mutations.store_attr(made, name, item)
        return made
    raise Unsupported("call", f"copy.copy of {value.describe()}")


def _is_registered(tx: TraceContext, value: ObjectValue, module: types.ModuleType, table: str) -> bool:
    """Whether this table of the standard library says how objects of the class are copied. An answer no is guarded."""
    return tx.wrap_known(module).get_attr(tx, table).contains(tx, tx.wrap_known(value.cls))


def _empty_copy(tx: TraceContext, value: ObjectValue, table: str) -> ObjectValue:
    """A new instance of the same class, for classes that are copied attribute by attribute."""
    why_not = _why_not_by_attributes(tx, value)
    if why_not is None and (
        _is_registered(tx, value, copy, table) or _is_registered(tx, value, copyreg, "dispatch_table")
    ):
        why_not = "a function is registered that copies its class"
    if why_not is not None:
        raise Unsupported("call", f"a copy of {value.describe()}: {why_not}")
    made = ObjectValue(value.cls)
    if _answers(tx, made, "__setstate__"):
        raise Unsupported("call", f"a copy of {value.describe()}, whose class gives a __setstate__")
    if is_of_program(tx, ("__getattribute__",), made) and not isinstance(made.get_attr(tx, "__dict__"), InstanceDict):
        raise Unsupported("call", f"a copy of {value.describe()}, whose class gives another __dict__")
    return made


def _answers(tx: TraceContext, value: ObjectValue, name: str) -> bool:
    """Whether `__getattribute__` or `__getattr__` of the program give an attribute that no class has."""
    if not is_of_program(tx, ("__getattr__", "__getattribute__"), value):
        return False
    try:
        value.get_attr(tx, name)
    except Raised as raised:
        if is_subtype(raised.value.python_type(), AttributeError):
            return False
        raise
    return True


def _why_not_by_attributes(tx: TraceContext, value: ObjectValue) -> str | None:
    if value.container is not None or isinstance(value.obj, torch.nn.Module):
        return "a module, or a subclass of a built-in type"
    if any("__slots__" in vars(cls) for cls in value.cls.__mro__):
        return "it has __slots__"
    for name in _ASKED:
        if lookup(tx, value.cls, name) is not vars(object).get(name, MISSING):
            return f"it has a {name} of its own"
    return None


_ASKED = tuple(
    f"__{name}__" for name in "reduce_ex reduce getstate setstate new getnewargs_ex getnewargs class".split()
)
"""What `copy` asks an object for, or calls (copy.py, _reconstruct; typeobject.c, object___reduce_ex__)."""


def _refuse_attributes(tx: TraceContext, value: Value) -> None:
    """Raise Unsupported for an OrderedDict with attributes, which copies have, too."""
    if value.python_type() is collections.OrderedDict:
        obj = getattr(value, "obj", None)
        if obj is not None and value.source is not None:
            tx.guards.add(OwnDictSource(value.source), "len", len(own_dict(obj) or ()))
        if tx.mutations.attrs_of(value) or (obj is not None and own_dict(obj)):
            raise Unsupported("call", "a copy of an OrderedDict with attributes")


def _deepcopy(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1 or kwargs:
        raise Unsupported("call", "copy.deepcopy with a memo")
    return _deep(tx, args[0], {})


def _deep(tx: TraceContext, value: Value, memo: dict[int, tuple[Value, Value]]) -> Value:
    """`memo` holds (original, copy) by identity of the original, which keeps it alive."""
    if id(value) in memo:
        return memo[id(value)][1]
    if isinstance(value, (ConcreteValue, FunctionValue)):
        return value
    if isinstance(value, TensorValue):
        memo[id(value)] = (value, _deep_tensor(tx, value, memo))
        return memo[id(value)][1]
    if isinstance(value, TupleValue):
        items = [_deep(tx, item, memo) for item in value.unpack(tx)]
        unchanged = all(new is old for new, old in zip(items, value.unpack(tx), strict=True))
        return value if unchanged else TupleValue(items, value.cls)
    if isinstance(value, ListValue) and value.cls is list:
        made_list = ListValue([])
        memo[id(value)] = (value, made_list)
        made_list.items.extend(_deep(tx, item, memo) for item in value.unpack(tx))
        return made_list
    if isinstance(value, DictValue) and value.owner is None and value.default_factory is None:
        _refuse_attributes(tx, value)
        made_dict = DictValue({}, value.cls)
        memo[id(value)] = (value, made_dict)
        for key, item in value.items(tx):
            made_dict.set_item(tx, _deep(tx, key, memo), _deep(tx, item, memo))
        return made_dict
    if isinstance(value, SetValue) and value.cls in (set, frozenset):
        memo[id(value)] = (value, SetValue.of(tx, [_deep(tx, item, memo) for item in value.unpack(tx)], value.cls))
        return memo[id(value)][1]
    is_plain = isinstance(value, ObjectValue) and lookup(tx, value.cls, "__deepcopy__") is MISSING
    if isinstance(value, ObjectValue) and is_plain and not _answers(tx, value, "__deepcopy__"):
        made = _empty_copy(tx, value, "_deepcopy_dispatch")
        memo[id(value)] = (value, made)
        for name, item in InstanceDict.of(tx, value).named_items(tx):
            tx.mutations.store_attr(made, name, _deep(tx, item, memo))
        return made
    raise Unsupported("call", f"copy.deepcopy of {value.describe()}")


def _deep_tensor(tx: TraceContext, value: TensorValue, memo: dict[int, tuple[Value, Value]]) -> Value:
    """A copy with the same strides. Copies of several tensors share memory where the tensors do, which the trace does not know."""
    fake = value.fake
    if fake.requires_grad or value.python_type() is not torch.Tensor:
        raise Unsupported("call", "copy.deepcopy of a tensor with gradients")
    if any(isinstance(other, TensorValue) for other, _ in memo.values()):
        raise Unsupported("call", "copy.deepcopy of several tensors, which may share memory")
    if (
        tx.mutations.attrs_of(value)
        or getattr(value.obj, "__dict__", None)
        or not is_non_overlapping_and_dense_or_false(fake)
    ):
        raise Unsupported("call", "copy.deepcopy of a tensor with gaps or attributes")
    return tx.run_in_graph("call_method", "clone", [value], {})


RULES = (Rule(copy.copy, _copy), Rule(copy.deepcopy, _deepcopy))
