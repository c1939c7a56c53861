"""Twins: real objects that are equal to what the trace has made, and that Python's own functions hash and compare in its place.

    class Signature:                       # made anew by each call of the program
        def __hash__(self): return hash(self.shape)
        def __eq__(self, other): return self.shape == other.shape

    plan(Signature(x.shape))               # a function under functools.lru_cache: does the cache know an equal one?

Nothing but hashes and comparisons may ever be asked of a twin, and nobody may keep it: which object it is differs from the program's.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import mro_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import settled
from treadle_tracer.values.class_lookup import find_in_mro, lookup
from treadle_tracer.values.keys import KeyByEquality, check_unchanged
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import IDENTITY_HASHES, ObjectValue
from treadle_tracer.values.rebuilt_objects import new_instance, set_attributes
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class Twins:
    """The twins that one call needs. What cannot have one raises Unsupported(code, `context` and what it is).

    has_made     among them are objects that the trace has made
    has_numbers  numbers that vary are constants in the trace, because a twin holds them
    """

    __slots__ = ("_code", "_context", "_tx", "has_made", "has_numbers")

    def __init__(self, tx: TraceContext, code: str, context: str):
        self._tx, self._code, self._context = tx, code, context
        self.has_made = self.has_numbers = False

    def of(self, value: Value) -> Any:
        """What Python may hash and compare: a constant, a number as it is at this call, an outside object, or a twin."""
        tx = self._tx
        if value.is_constant():
            return value.constant()
        value = settled(value)
        if isinstance(value, SymbolicValue):
            self.has_numbers = True
            return tx.specialise(value)
        if isinstance(value, TupleValue) and is_one_of(value.cls, (tuple, torch.Size)):
            return value.cls(self.of(item) for item in value.unpack(tx))
        if isinstance(value, SetValue) and value.cls is frozenset and value.source is None:
            return frozenset(self.of(item) for item in value.entries.values())
        if getattr(value, "obj", None) is not None:
            return self._outside(value)
        if not isinstance(value, ObjectValue) or value.source is not None:
            raise self._refused(value)
        twin = self._made(value)
        self._check_hash(value, twin)
        self.has_made = True
        return twin

    def _refused(self, value: Value) -> Unsupported:
        return Unsupported(self._code, self._context + value.describe())

    def _outside(self, value: Value) -> Any:
        """An outside object that is hashed by its address is its own twin, unless the program has changed it.

        In the place of one that is hashed by what it holds, other calls may have others that are equal.
        """
        tx, cls, obj = self._tx, value.python_type(), value.obj  # type: ignore[attr-defined]
        if value.source is None or tx.mutations.is_mutated(value) or tx.mutations.attrs_of(value):
            raise self._refused(value)
        if isinstance(value, ObjectValue) and isinstance(lookup(tx, cls, "__hash__"), types.FunctionType):
            self._check_hash(value, obj)
            is_found_again = hash(obj) == hash(id(obj))
        else:
            by_identity = lookup(tx, cls, "__hash__") in IDENTITY_HASHES and lookup(tx, cls, "__eq__") is object.__eq__
            is_found_again = by_identity and isinstance(value.source, ConstSource)
        if not is_found_again:
            raise self._refused(value)
        tx.guards.add(value.source, "is", obj)
        return obj

    def _check_hash(self, value: Value, real: Any) -> None:
        """Guard what `__hash__` and `__eq__` read. Raises Unsupported where they have effects, or depend on which object it is."""
        tx = self._tx
        known = hash(KeyByEquality(tx, value))
        before = tx.mutations.snapshot()
        tx.compare("==", value, value).truth(tx)
        check_unchanged(tx, before, value)
        if known != hash(real):
            raise self._refused(value)

    def _made(self, value: ObjectValue) -> Any:
        """A twin that nobody has asked for its hash yet."""
        is_dict = isinstance(value.container, DictValue) and value.container.default_factory is None
        if not (is_dict or (value.container is None and not value.new_args)):
            raise self._refused(value)
        if find_in_mro(mro_of(value.cls), "__del__")[1] is not None:
            raise self._refused(value)
        twin = new_instance(value.cls)
        for name, item in self._tx.mutations.attrs_of(value).items():
            if not isinstance(item, Value):
                raise self._refused(value)
            set_attributes(twin, {name: self._part(item)})
        if value.container is not None:
            dict.update(twin, self._dict(value.container))
        return twin

    def _part(self, value: Value) -> Any:
        """What an object holds, which may have no hash."""
        value = settled(value)
        if isinstance(value, ObjectValue) and value.obj is None and value.source is None:
            return self._made(value)
        if isinstance(value, ListValue) and value.cls is list and value.source is None:
            return [self._part(item) for item in value.unpack(self._tx)]
        if isinstance(value, DictValue) and value.cls is dict and value.source is None:
            return self._dict(value)
        return self.of(value)

    def _dict(self, value: Any) -> dict[Any, Any]:
        return {self.of(key): self._part(item) for key, item in value.items(self._tx)}
