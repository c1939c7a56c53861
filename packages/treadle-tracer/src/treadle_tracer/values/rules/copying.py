"""Rules of `copy.copy` and `copy.deepcopy`."""

from __future__ import annotations

import collections
import copy
import copyreg
import functools
import types
from typing import TYPE_CHECKING

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false

from treadle_tracer.class_facts import is_subtype, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import OwnDictSource
from treadle_tracer.values.base import NONE, ConcreteValue, is_none, settled
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.functions import BoundMethod, FunctionValue, PartialValue
from treadle_tracer.values.identity_numbers import IDENTITY_NUMBERS, identity_number
from treadle_tracer.values.instance_dict import InstanceDict
from treadle_tracer.values.mappings import DictValue, dict_of
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
    memo = kwargs.get("memo", args[1] if len(args) > 1 else NONE)
    if len(args) > 2 or kwargs.keys() - {"memo"}:
        raise Unsupported("call", "copy.deepcopy with more than a memo")
    if is_none(memo):
        return _deep(tx, args[0], DictValue({}))
    if not isinstance(memo, DictValue) or memo.source is not None or memo.cls is not dict or memo.owner is not None:
        raise Unsupported("call", f"copy.deepcopy with the memo {memo.describe()}")
    for number, found in list(memo.entries.values()):
        _check_memo(number, settled(found))
    return _deep(tx, args[0], memo)


def _check_memo(number: Value, found: Value) -> None:
    """Raise Unsupported where a memo of the program may say that a constant is copied as something else."""
    target = number.target if isinstance(number, IDENTITY_NUMBERS) else None
    if target is None or (isinstance(target, ConcreteValue) and found.identity() is not target.identity()):
        raise Unsupported("call", f"copy.deepcopy with a memo that holds {found.describe()} for {number.describe()}")


def _deep(tx: TraceContext, value: Value, memo: DictValue) -> Value:
    """`memo` holds the copies by the addresses of the originals, and keeps the originals alive, as Python's does."""
    if isinstance(value, ConcreteValue):
        return value  # `_check_memo`
    number = None
    if not isinstance(value, FunctionValue) and not _is_fixed(value):
        number = identity_number(tx, value)
        known = memo.lookup(tx, number)
        if known is not None:
            return known
    made = _deep_by_kind(tx, value, memo, number)
    if number is not None and made is not value:
        memo.set_item(tx, number, made)
        _keep_alive(tx, value, memo)
    return made


def _is_fixed(value: Value) -> bool:
    """Whether this is a tuple that holds nothing but constants, which is its own copy."""
    if not isinstance(value, TupleValue):
        return False
    return all(isinstance(item, ConcreteValue) or _is_fixed(item) for item in map(settled, value.items))


def _keep_alive(tx: TraceContext, value: Value, memo: DictValue) -> None:
    number = identity_number(tx, memo)
    kept = memo.lookup(tx, number)
    if kept is None:
        memo.set_item(tx, number, ListValue([value]))
    else:
        kept.call_method(tx, "append", [value], {})


def _deep_by_kind(tx: TraceContext, value: Value, memo: DictValue, number: Value | None) -> Value:
    """A copy of what is not in the memo, entered there under `number` before what may contain it again is copied."""
    if isinstance(value, FunctionValue):
        return value
    if isinstance(value, TensorValue):
        return _deep_tensor(tx, value, memo)
    if isinstance(value, BoundMethod):
        return BoundMethod(value.function, _deep(tx, value.instance, memo))
    if isinstance(value, TupleValue):
        items = [_deep(tx, item, memo) for item in value.unpack(tx)]
        unchanged = all(new is old for new, old in zip(items, value.unpack(tx), strict=True))
        return value if unchanged else TupleValue(items, value.cls)
    if isinstance(value, SetValue) and value.cls in (set, frozenset):
        return SetValue.of(tx, [_deep(tx, item, memo) for item in value.unpack(tx)], value.cls)
    if number is not None:
        if isinstance(value, ListValue) and value.cls is list:
            made_list = ListValue([])
            memo.set_item(tx, number, made_list)
            made_list.items.extend(_deep(tx, item, memo) for item in value.unpack(tx))
            return made_list
        if isinstance(value, DictValue) and value.owner is None and value.default_factory is None:
            return _deep_dict(tx, value, memo, number)
        if isinstance(value, ObjectValue):
            return _deep_object(tx, value, memo, number)
    raise Unsupported("call", f"copy.deepcopy of {value.describe()}")


def _deep_dict(tx: TraceContext, value: DictValue, memo: DictValue, number: Value) -> Value:
    _refuse_attributes(tx, value)
    made = DictValue({}, value.cls)
    memo.set_item(tx, number, made)
    for key, item in value.items(tx):
        made.set_item(tx, _deep(tx, key, memo), _deep(tx, item, memo))
    return made


def _deep_object(tx: TraceContext, value: ObjectValue, memo: DictValue, number: Value) -> Value:
    if lookup(tx, value.cls, "__deepcopy__") is not MISSING or _answers(tx, value, "__deepcopy__"):
        return _deep_by_method(tx, value, memo)
    if isinstance(value.container, PartialValue) and value.cls is functools.partial:
        return _deep_partial(tx, value, value.container, memo)
    made = _empty_copy(tx, value, "_deepcopy_dispatch")
    memo.set_item(tx, number, made)
    state = InstanceDict.of(tx, value)
    if state.truth(tx):  # typeobject.c, object_getstate_default: an empty one is None
        for key, item in _deep_dict_of(tx, state, memo).items(tx):
            tx.mutations.store_attr(made, key.constant(), item)
    return made


def _deep_partial(tx: TraceContext, value: ObjectValue, partial: PartialValue, memo: DictValue) -> Value:
    """A copy of its state as `partial.__reduce__` gives it."""
    if _is_registered(tx, value, copyreg, "dispatch_table") or InstanceDict.of(tx, value).truth(tx):
        raise Unsupported("call", f"copy.deepcopy of {value.describe()}")
    state = TupleValue((partial.function, TupleValue(partial.args), dict_of(partial.keywords), NONE))
    function, args, keywords, _ = _deep(tx, state, memo).unpack(tx)
    named = {key.constant(): item for key, item in keywords.as_dict(tx).items(tx)}
    return ObjectValue(value.cls, None, None, PartialValue(function, args.unpack(tx), named))


def _deep_dict_of(tx: TraceContext, state: InstanceDict, memo: DictValue) -> DictValue:
    """The copy of an instance's `__dict__`, which stands in the memo, too."""
    copied = _deep(tx, state, memo)
    assert isinstance(copied, DictValue)
    return copied


def _deep_by_method(tx: TraceContext, value: ObjectValue, memo: DictValue) -> Value:
    """What the object's own `__deepcopy__` gives. It may have entered its copy into the memo itself."""
    if isinstance(value.obj, torch.nn.Module) or _is_registered(tx, value, copy, "_deepcopy_dispatch"):
        raise Unsupported("call", f"copy.deepcopy of {value.describe()}")
    return value.get_attr(tx, "__deepcopy__").call(tx, [memo], {})


def _deep_tensor(tx: TraceContext, value: TensorValue, memo: DictValue) -> Value:
    """A copy with the same strides. Copies of several tensors share memory where the tensors do, which the trace does not know."""
    fake = value.fake
    if fake.requires_grad or value.python_type() is not torch.Tensor:
        raise Unsupported("call", "copy.deepcopy of a tensor with gradients")
    if any(isinstance(getattr(number, "target", None), TensorValue) for number, _ in memo.entries.values()):
        raise Unsupported("call", "copy.deepcopy of several tensors, which may share memory")
    if (
        tx.mutations.attrs_of(value)
        or getattr(value.obj, "__dict__", None)
        or not is_non_overlapping_and_dense_or_false(fake)
    ):
        raise Unsupported("call", "copy.deepcopy of a tensor with gaps or attributes")
    return tx.run_in_graph("call_method", "clone", [value], {})


RULES = (Rule(copy.copy, _copy), Rule(copy.deepcopy, _deepcopy))
