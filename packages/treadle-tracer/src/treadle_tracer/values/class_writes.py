"""Attributes of outside classes that the program sets or deletes: `Counter.calls += 1`.

The class stays as it is while the trace runs. What lookups find instead stands in `tx.class_writes` (`values.class_lookup`): for a function
its shadow, for any other value a `Held` that leads to it. The writes are replayed after the graph, like those to other objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import module_of, namespace_of, stands_in_its_module
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.class_lookup import MISSING, class_attribute_source, class_may_change, lookup
from treadle_tracer.values.constants import CONSTANT_TYPES, is_trusted_name
from treadle_tracer.values.functions import ClassValue, FunctionValue
from treadle_tracer.values.joined import SymbolicBool
from treadle_tracer.values.shadows import Held, register, shadow_of
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def store(tx: TraceContext, cls: ClassValue, name: str, value: Value) -> None:
    """`cls.name = value`, as `type.__setattr__` does it."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    why = _why_not_written(tx, cls, name)
    if (
        why is None
        and not isinstance(value, FunctionValue)
        and lookup(tx, value.python_type(), "__get__") is not MISSING
    ):
        why = f"to a {value.python_type().__name__}, which is a descriptor"
    if why is not None:
        raise Unsupported("class-store", f"{cls.describe()}.{name} {why}")
    tx.mutations.store_attr(_one_value(tx, cls), name, value)
    if _is_original(cls, name, value):
        tx.class_writes.pop((id(cls.obj), name), None)
        lookup(tx, cls.obj, name)  # guards that the class has it
        return
    is_function = isinstance(value, FunctionValue)
    tx.class_writes[id(cls.obj), name] = shadow_of(tx, value) if is_function else register(tx, Held(), value)


def _is_original(cls: ClassValue, name: str, value: Value) -> bool:
    """Whether the class has this value, a constant: a setting is put back as it was. What it holds is what the program sees, then."""
    original = namespace_of(cls.obj).get(name, MISSING)
    is_known = isinstance(value, Constant) and not isinstance(value, SymbolicBool)
    return is_known and type(original) in CONSTANT_TYPES and value.constant() is original


def delete(tx: TraceContext, cls: ClassValue, name: str) -> None:
    """`del cls.name`, as `type.__delattr__` does it."""
    why = _why_not_written(tx, cls, name)
    written = tx.class_writes.get((id(cls.obj), name))
    if why is None and (written is MISSING or (written is None and name not in namespace_of(cls.obj))):
        why = "is deleted and not there"
    if why is not None:
        raise Unsupported("class-store", f"{cls.describe()}.{name} {why}")
    if written is None:
        lookup(tx, cls.obj, name)  # guards that the class has it
    tx.mutations.delete_attr(_one_value(tx, cls), name)
    tx.class_writes[id(cls.obj), name] = MISSING


def attribute(tx: TraceContext, raw: Any, owner: type, name: str) -> Value:
    """The Value of what a lookup has found in the class `owner`, as it stands there."""
    written = tx.mutations.made.get(id(raw)) if isinstance(raw, Held) else None
    if written is not None and written[1] is not None:
        return written[1]
    return tx.wrap(raw, class_attribute_source(tx, owner, name))


def _why_not_written(tx: TraceContext, cls: ClassValue, name: str) -> str | None:
    meta = type(cls.obj)
    if not class_may_change(cls.obj):
        return "of a class that cannot be changed"
    is_counter = type(namespace_of(cls.obj).get(name)) is int  # RemovableHandle.next_id; what is read of it is guarded
    if stands_in_its_module(cls.obj) and is_trusted_name(module_of(cls.obj)) and not is_counter:
        return "of a class of PyTorch or the standard library"
    if name.startswith("__") and name.endswith("__"):
        return "is a special name"
    if (
        lookup(tx, meta, "__setattr__") is not type.__setattr__
        or lookup(tx, meta, "__delattr__") is not type.__delattr__
    ):
        return "is stored by a metaclass"
    if lookup(tx, meta, name) is not MISSING:
        return "is an attribute of the metaclass, too"
    return None


def _one_value(tx: TraceContext, cls: ClassValue) -> Value:
    """The one Value of the class, under which its writes are recorded."""
    return tx.wrap_known(cls.obj)
