"""`object.__setattr__` and `object.__delattr__`: which stores are carried out after the graph, and which raise.

A store that would raise there comes too late: the graph has run by then. So only those are kept that cannot raise.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.class_lookup import MISSING, class_may_change, is_data_descriptor, lookup

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext, Value

PROPERTY = vars(property)
_SLOT_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
# CPython 3.13, Objects/object.c: _PyObject_GenericSetAttrWithDict
_WITHOUT_DICT = " and no __dict__ for setting new attributes" if MINOR >= 13 else ""
# What attributes of exceptions take (Objects/exceptions.c: the setters of BaseException).
_TAKEN_BY_EXCEPTIONS: dict[str, tuple[type, ...]] = {
    "args": (tuple,),
    "__cause__": (BaseException, types.NoneType),
    "__context__": (BaseException, types.NoneType),
    "__traceback__": (types.TracebackType, types.NoneType),
    "__suppress_context__": (bool,),
    "value": (object,),
    "code": (object,),
}

# What attributes of the context of an autograd function take (torch/csrc/autograd/python_function.cpp: setObject, and a setter of bools).
_TAKEN_BY_CONTEXTS: dict[str, tuple[type, ...]] = {
    "to_save": (object,),
    "saved_for_forward": (object,),
    "dirty_tensors": (object,),
    "non_differentiable": (object,),
    "materialize_grads": (bool,),
}
_TAKEN = ((BaseException, _TAKEN_BY_EXCEPTIONS), (torch._C._FunctionBase, _TAKEN_BY_CONTEXTS))


class Owner(Protocol):
    """An instance: see `values.objects.ObjectValue`."""

    cls: type

    def describe(self) -> str: ...
    def has_dict(self) -> bool: ...
    def realise_dict_item(self, tx: TraceContext, name: str) -> None: ...
    def own_attr(self, tx: TraceContext, name: str) -> Value | None: ...
    def load_slot(self, tx: TraceContext, raw: Any, name: str) -> Value | None: ...


def store_attribute(tx: TraceContext, owner: Owner, name: str, value: Value) -> None:
    """`object.__setattr__(owner, name, value)`."""
    if name == "__class__":
        raise Unsupported("attribute-store", f"{owner.describe()}.__class__")
    raw = lookup(tx, owner.cls, name)
    if isinstance(raw, _SLOT_DESCRIPTORS):
        if not _takes(owner, raw, name, value):
            raise Unsupported("attribute-store", f"{owner.describe()}.{name}, which may refuse it")
    elif raw is not MISSING and is_data_descriptor(tx, raw):
        _store_through(tx, owner, raw, name, value)
        return
    elif not owner.has_dict():
        _refuse(tx, owner, raw, name)
    owner.realise_dict_item(tx, name)
    tx.mutations.store_attr(owner, name, value)


def delete_attribute(tx: TraceContext, owner: Owner, name: str) -> None:
    """`object.__delattr__(owner, name)`."""
    raw = lookup(tx, owner.cls, name)
    is_slot = isinstance(raw, types.MemberDescriptorType) and class_may_change(raw.__objclass__)
    if raw is not MISSING and not is_slot and is_data_descriptor(tx, raw):
        if lookup(tx, type(raw), "__delete__") is PROPERTY["__delete__"] and raw.fdel is not None:
            tx.wrap_known(raw.fdel).call(tx, [owner], {})
            return
        raise Unsupported("attribute-store", f"del {owner.describe()}.{name}")
    if not is_slot and not owner.has_dict():
        _refuse(tx, owner, raw, name)
    if (owner.load_slot(tx, raw, name) if is_slot else owner.own_attr(tx, name)) is None:
        tx.raise_exception(
            AttributeError, name if is_slot else f"{owner.cls.__name__!r} object has no attribute {name!r}"
        )
    tx.mutations.delete_attr(owner, name)


def _takes(owner: Owner, raw: Any, name: str, value: Value) -> bool:
    """Whether a member or getset descriptor surely takes the value: slots that Python made take everything."""
    if isinstance(raw, types.MemberDescriptorType) and class_may_change(raw.__objclass__):
        return True
    taken = next((table.get(name, ()) for base, table in _TAKEN if is_subtype(owner.cls, base)), ())
    return any(is_subtype(value.python_type(), kind) for kind in taken)


def _refuse(tx: TraceContext, owner: Owner, raw: Any, name: str) -> NoReturn:
    """Raise what a store to an object without a dict raises."""
    kind = owner.cls.__name__
    if raw is MISSING:
        tx.raise_exception(AttributeError, f"{kind!r} object has no attribute {name!r}{_WITHOUT_DICT}")
    tx.raise_exception(AttributeError, f"{kind!r} object attribute {name!r} is read-only")


def _store_through(tx: TraceContext, owner: Owner, raw: Any, name: str, value: Value) -> None:
    setter = lookup(tx, type(raw), "__set__")
    if setter is PROPERTY["__set__"]:
        if raw.fset is None:
            tx.raise_exception(AttributeError, f"property {name!r} of {owner.cls.__qualname__!r} object has no setter")
        tx.wrap_known(raw.fset).call(tx, [owner, value], {})
        return
    if not isinstance(setter, types.FunctionType):
        raise Unsupported("attribute-store", f"{owner.describe()}.{name} through {type(raw).__name__}")
    tx.inline(tx.wrap_known(setter), [tx.wrap_known(raw), owner, value], {})
