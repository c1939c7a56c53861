"""`weakref.ref(obj)` in the trace: the object is there as long as a variable holds it, or an object that a variable holds.

References with a callback are those of `WeakKeyDictionary`, `WeakValueDictionary` and `WeakSet`. Their callbacks take what is gone out of
the container's `data`, so that whoever reads `data` makes sure first that nothing is gone.
"""

from __future__ import annotations

import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.class_facts import is_subtype, is_weakly_referable, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource
from treadle_tracer.values.base import NONE, LazyValue, is_none
from treadle_tracer.values.constants import CONSTANT_TYPES
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.holders import is_held
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


_REFERRED = (ObjectValue, DictValue)


class WeakReference(Value):
    """A reference to an object that the trace has made, or one with a callback.

    made_at: the instruction of the root frame that made it. callback: NONE where there is none. key: of a `KeyedRef`.
    """

    __slots__ = ("callback", "cls", "key", "made_at", "target")

    def __init__(
        self,
        target: ObjectValue | DictValue,
        made_at: int,
        callback: Value = NONE,
        cls: type = weakref.ref,
    ):
        self.source = None
        self.target = target
        self.made_at = made_at
        self.callback = callback
        self.cls = cls
        self.key: Value | None = None

    def python_type(self) -> type:
        return self.cls

    def truth(self, tx: TraceContext) -> bool:
        return True

    def hash_key(self, tx: TraceContext) -> object:
        """References compare as their objects do, and have their hashes. One to an outside object is found among real ones."""
        if not isinstance(self.target, ObjectValue):
            raise Unsupported("weak-reference", "a reference as a key")
        self.check_alive(tx)
        key = self.target.hash_key(tx)
        return weakref.ref(key) if self.target.obj is not None and key is self.target.obj else (weakref.ref, key)

    def check_alive(self, tx: TraceContext) -> None:
        """Raises Unsupported where the object may be gone."""
        if not _is_alive(tx, self.target):
            raise Unsupported("weak-reference", f"{self.target.describe()}, which nothing that is known holds")

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.check_alive(tx)
        return self.target

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "key" and self.key is not None:
            return self.key
        if name == "__callback__":
            self.check_alive(tx)
            return self.callback
        return super().get_attr(tx, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        if name != "key" or self.cls is not weakref.KeyedRef or self.key is not None:
            super().set_attr(tx, name, value)
        self.key = value

    def reconstruct(self, cg: Any) -> None:
        if self.cls is weakref.KeyedRef:
            assert self.key is not None
            cg.weak_reference(self.target, self.made_at, self.cls, self.callback, self.key)
        elif is_none(self.callback):
            cg.weak_reference(self.target, self.made_at)
        else:
            cg.weak_reference(self.target, self.made_at, self.cls, self.callback)


def new_reference(tx: TraceContext, args: list[Value], kwargs: dict[str, Value], cls: type = weakref.ref) -> Value:
    """`weakref.ref(obj, callback)`, and `ref.__new__(cls, obj, callback)` of a `KeyedRef`"""
    if kwargs or not 1 <= len(args) <= 2:
        raise Unsupported("weak-reference", "a reference with these arguments")
    target = args[0].force(tx) if isinstance(args[0], LazyValue) else args[0]
    if len(args) == 2 and not is_none(args[1]):
        return _new_with_callback(tx, target, args[1], cls)
    if cls is not weakref.ref:
        raise Unsupported("weak-reference", f"a {cls.__name__} without a callback")
    outside = getattr(target, "obj", None)
    if outside is not None and target.source is not None and is_weakly_referable(type(outside)):
        return tx.wrap(weakref.ref(outside), ApplySource(target.source, weakref.ref))
    made = _referable(target)
    if not is_held(tx, made):
        raise Unsupported("weak-reference", target.describe())
    if id(target) not in tx.wrapped:  # there is one such reference to an object
        tx.wrapped[id(target)] = (target, WeakReference(made, tx.frames[0].at))
    return tx.wrapped[id(target)][1]


def _referable(target: Value) -> ObjectValue | DictValue:
    """An object that the trace has made and that can be referred to. Raises Unsupported for all others."""
    if not isinstance(target, _REFERRED) or target.obj is not None or not is_weakly_referable(target.cls):
        raise Unsupported("weak-reference", target.describe())
    return target


def _new_with_callback(tx: TraceContext, target: Value, callback: Value, cls: type) -> WeakReference:
    """A reference that a weak container of the standard library makes."""
    callback = callback.force(tx) if isinstance(callback, LazyValue) else callback
    if not isinstance(callback, FunctionValue) or callback.code not in _CALLBACKS:
        raise Unsupported("weak-reference", "a reference with a callback")
    if not isinstance(target, ObjectValue) or target.obj is None or target.source is None:
        target = _referable(target)
    elif not is_weakly_referable(target.cls) or isinstance(target.obj, torch.Tensor):
        raise Unsupported("weak-reference", target.describe())
    made = WeakReference(target, tx.frames[0].at, callback, cls)
    made.check_alive(tx)
    tx.weak_references.append(made)
    return made


def _is_alive(tx: TraceContext, target: ObjectValue | DictValue) -> bool:
    """Whether an object is surely there. An outside one is, unless the program has written to what may have held it."""
    if is_held(tx, target):
        return True
    return target.source is not None and target.obj is not None and not _may_have_let_go(tx)


_MOST_MEMBERS = 1000


def _may_have_let_go(tx: TraceContext) -> bool:
    """Whether a write of the program may have replaced what holds an object: anything but numbers, texts, plain tensors and the like."""
    writes = tx.mutations
    if any(True for _ in writes.global_stores()) or any(cell.source is not None for cell, _ in writes.cell_stores()):
        return True
    for owner, name, _ in writes.attr_stores():
        if owner.source is not None:
            attributes = own_dict(getattr(owner, "obj", None))
            if attributes is None or not _holds_nothing(attributes.get(name)):
                return True
    for container in writes.containers():
        members = getattr(container, "obj", None)
        if not isinstance(members, (dict, list, set)) or len(members) > _MOST_MEMBERS:
            return True
        held = [*dict.keys(members), *dict.values(members)] if isinstance(members, dict) else members
        if not all(map(_holds_nothing, held)):
            return True
    return False


def _holds_nothing(obj: Any) -> bool:
    """Whether no other object is kept alive by this one."""
    if type(obj) is torch.Tensor or type(obj) is torch.nn.Parameter:
        return obj.grad_fn is None and not obj.__dict__
    return type(obj) in CONSTANT_TYPES or isinstance(obj, weakref.ReferenceType)


# ---- containers

_WEAK_CONTAINERS: tuple[Any, ...] = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
_CALLBACKS = frozenset(
    constant
    for container in _WEAK_CONTAINERS
    for constant in container.__init__.__code__.co_consts
    if isinstance(constant, types.CodeType)
)
"""Code of the callbacks of weak containers, which take a dead reference out of `data`."""


def check_container(tx: TraceContext, owner: Value) -> None:
    """Before the program reads `owner.data`: raises Unsupported where a callback may have changed it by now."""
    if not any(is_subtype(owner.python_type(), container) for container in _WEAK_CONTAINERS):
        return
    if not any(tx.frames[-1].globals is vars(sys.modules[name]) for name in ("weakref", "_weakrefset")):
        raise Unsupported("weak-reference", f"what {owner.describe()} holds inside")
    for reference in tx.weak_references:
        reference.check_alive(tx)
