"""`weakref.ref(obj)` in the trace: the object is there as long as a variable holds it, or an object that a variable holds."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import is_weakly_referable
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource
from treadle_tracer.values.base import LazyValue
from treadle_tracer.values.holders import is_held
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


_REFERRED = (ObjectValue, DictValue)


class WeakReference(Value):
    """A reference without a callback to an object that the trace has made."""

    __slots__ = ("made_at", "target")

    def __init__(self, target: ObjectValue | DictValue, made_at: int):
        self.source = None
        self.target = target
        self.made_at = made_at

    def python_type(self) -> type:
        return weakref.ref

    def truth(self, tx: TraceContext) -> bool:
        return True

    def hash_key(self, tx: TraceContext) -> object:
        raise Unsupported("weak-reference", "a reference as a key")

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not is_held(tx, self.target):
            raise Unsupported("weak-reference", f"{self.target.describe()}, which nothing that is known holds")
        return self.target

    def reconstruct(self, cg: Any) -> None:
        cg.weak_reference(self.target, self.made_at)


def new_reference(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`weakref.ref(obj)`"""
    if kwargs or len(args) != 1:
        raise Unsupported("weak-reference", "a reference with a callback")
    target = args[0].force(tx) if isinstance(args[0], LazyValue) else args[0]
    outside = getattr(target, "obj", None)
    if outside is not None and target.source is not None and is_weakly_referable(type(outside)):
        return tx.wrap(weakref.ref(outside), ApplySource(target.source, weakref.ref))
    if not isinstance(target, _REFERRED) or target.obj is not None or not is_weakly_referable(target.cls):
        raise Unsupported("weak-reference", target.describe())
    if not is_held(tx, target):
        raise Unsupported("weak-reference", target.describe())
    if id(target) not in tx.wrapped:  # there is one such reference to an object
        tx.wrapped[id(target)] = (target, WeakReference(target, tx.frames[0].at))
    return tx.wrapped[id(target)][1]
