"""`torch.nn.Module` instances: parameters, buffers and submodules are found in their dicts, and calls skip empty hook machinery.

A module is guarded by its identity, until another has stood in its place. From then on it is guarded by its structure: by its class, and
by every fact that the trace reads of it where it is read. Its parameters and buffers are inputs of the graph then. So every method here
registers what it reads of `self.obj`, on a source that starts at the module's own.
"""

from __future__ import annotations

import collections
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as module_machinery
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedTensorMixin

from treadle_tracer.by_identity import IdentitySet, is_one_of
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource, DictItemSource, InstanceDictSource, OwnDictSource, Source
from treadle_tracer.values.attribute_stores import store_attribute
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import MISSING, instance_dict_source, lookup
from treadle_tracer.values.constants import CONSTANT_TYPES
from treadle_tracer.values.dispatched_tensors import is_dispatched
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.originals import MODULE_CALL_IMPL, MODULE_GETATTR, MODULE_SETATTR
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tail_calls import tail_call
from treadle_tracer.values.tensor import TensorValue
from treadle_tracer.values.tensor_subclasses import is_subclassed
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_HOOK_DICTS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOK_DICTS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
_MEMBER_DICTS = ("_parameters", "_buffers", "_modules")
_STANDARD_CALLS = IdentitySet((torch.nn.Module.__call__, torch.nn.Module._wrapped_call_impl))


_replaced_buffers: weakref.WeakKeyDictionary[torch.nn.Module, set[str]] = weakref.WeakKeyDictionary()
"""Names of buffers that traced code has assigned. They are other tensors at every call, so inputs and no attributes of the graph."""


def _changed_dict(tx: TraceContext, members: Any) -> DictValue | None:
    """The Value of an outside dict, if the trace has changed that dict."""
    if not _is_changed(tx, members):
        return None
    changed = tx.wrapped[id(members)][1]
    assert isinstance(changed, DictValue)
    return changed


def _is_changed(tx: TraceContext, members: Any) -> bool:
    """Whether the trace has changed an outside dict."""
    cached = tx.wrapped.get(id(members))
    return cached is not None and tx.mutations.is_mutated(cached[1])


def _is_written(tx: TraceContext, module: ModuleValue, name: str) -> bool:
    """Whether the trace has changed or replaced a dict of a module."""
    return tx.mutations.load_attr(module, name) is not None or _is_changed(tx, module.obj.__dict__.get(name))


def is_submodule(source: Source) -> bool:
    """Whether a module at this source is one that another module registers: it stays as long as that one, as a rule."""
    members = source.base
    return isinstance(members, InstanceDictSource) and members.key == "_modules"


def _wrap_member(tx: TraceContext, obj: Any, source: Source) -> Value:
    """A parameter or buffer in a module's dict."""
    if not isinstance(obj, torch.Tensor) or id(obj) in tx.wrapped or is_subclassed(obj) or is_dispatched(obj):
        return tx.wrap(obj, source)
    made = tx.wrap_tensor(obj, source, static=True)
    tx.wrapped[id(obj)] = (obj, made)
    return made


def _wrap_attribute(tx: TraceContext, obj: Any, source: Source) -> Value:
    """An attribute of a module. A tuple of constants (a stride, say) is the same object at every call of the same module: one guard.

    Floats are guarded one by one, because a number that changes from call to call is more often a float.
    """
    if type(obj) is tuple and all(type(item) in CONSTANT_TYPES and type(item) is not float for item in obj):
        tx.guards.add(source, "equals" if tx.symbols.is_structural(source) else "is", obj)
        return TupleValue([Constant(item) for item in obj], tuple, source, obj)
    return tx.wrap(obj, source)


class ModuleValue(ObjectValue):
    """An outside module, guarded by identity or by structure: see the docstring of this file."""

    __slots__ = ()

    def is_known_object(self, tx: TraceContext) -> bool:
        return self.source is not None and not tx.symbols.is_structural(self.source)

    def rely_on_identity(self, tx: TraceContext) -> None:
        """Guard which module it is, unless it is guarded by its structure."""
        assert self.source is not None
        if self.is_known_object(tx):
            tx.guards.add(self.source, "is", self.obj)
        tx.guards.add(self.source, "type_is", self.cls)

    def fallback_attr(self, tx: TraceContext, name: str, raised: Any) -> Value:
        is_standard = raised is None and lookup(tx, self.cls, "__getattr__") is MODULE_GETATTR
        if is_standard and not _has_members_of_its_own_kind(self.obj):
            found = self.member(tx, name)
            if found is not None:
                return found
            return tx.raise_exception(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
        return super().fallback_attr(tx, name, raised)

    def member(self, tx: TraceContext, name: str) -> Value | None:
        """A parameter, buffer or submodule, or None."""
        assert self.source is not None
        for dict_name in _MEMBER_DICTS:
            self.check_not_replaced(tx, dict_name)
            members = self.obj.__dict__.get(dict_name)
            if members is None:
                tx.guards.add(OwnDictSource(self.source), "lacks_key", dict_name)
                continue
            dict_source = self.member_dict(tx, dict_name)
            changed = _changed_dict(tx, members)
            if changed is not None:
                found = changed.lookup(tx, tx.from_constant(name))
                if found is not None:
                    return found
            elif name in members:
                if dict_name == "_modules" or name in _replaced_buffers.get(self.obj, ()):
                    return tx.wrap(members[name], DictItemSource(dict_source, name))
                return _wrap_member(tx, members[name], DictItemSource(dict_source, name))
            if changed is None:
                tx.guards.add(dict_source, "lacks_key", name)
        return None

    @tail_call
    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if _is_uninitialised(self.obj):
            raise Unsupported("lazy-module", self.describe())
        raw = lookup(tx, self.cls, "__call__")
        if raw in _STANDARD_CALLS:
            tx.module_calls[len(tx.frames)] = tx.step
        if raw in _STANDARD_CALLS and self.has_no_hooks(tx):
            forward = self.get_attr(tx, "forward")
            return forward.call(tx, args, kwargs)
        if raw in _STANDARD_CALLS:
            return self.get_attr(tx, "_call_impl").call(tx, args, kwargs)
        return tx.bind(self, raw, "__call__").call(tx, args, kwargs)

    def has_no_hooks(self, tx: TraceContext) -> bool:
        """Whether calling the module is calling its `forward`; guarded."""
        own = self.obj.__dict__
        if lookup(tx, self.cls, "_call_impl") is not MODULE_CALL_IMPL or self.own_attr(tx, "_call_impl") is not None:
            return False
        compiled = self.plain_attr(tx, "_compiled_call_impl")
        if compiled is not None and not _is_none(compiled):
            raise Unsupported("compiled-module", self.describe())
        if any(own.get(name) for name in _HOOK_DICTS) or any(
            vars(module_machinery)[name] for name in _GLOBAL_HOOK_DICTS
        ):
            return False
        if any(_is_written(tx, self, name) for name in _HOOK_DICTS):
            return False
        if any(_is_changed(tx, vars(module_machinery)[name]) for name in _GLOBAL_HOOK_DICTS):
            return False
        # Without gradients, backward hooks are never run; grad mode is guarded.
        for name in _HOOK_DICTS if torch.is_grad_enabled() else _HOOK_DICTS[:2]:
            tx.guards.add(InstanceDictSource(self.source, name), "len", 0)  # type: ignore[arg-type]
        for name in _GLOBAL_HOOK_DICTS:
            hooks = vars(module_machinery)[name]
            tx.guards.add(ConstSource(hooks, f"torch.nn.modules.module.{name}"), "len", 0)
        return True

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        setter = lookup(tx, self.cls, "__setattr__")
        if setter is not MODULE_SETATTR:
            super().set_attr(tx, name, value)
            return
        if self.why_not_plain_store(tx, value, name) is not None:
            tx.inline(tx.wrap_known(setter), [self, Constant(name), value], {})
            return
        if self.has_member(tx, "_buffers", name):
            _replaced_buffers.setdefault(self.obj, set()).add(name)
            buffers = self.get_attr(tx, "_buffers")
            buffers.set_item(tx, tx.from_constant(name), value)
            return
        store_attribute(tx, self, name, value)

    def why_not_plain_store(self, tx: TraceContext, value: Value, name: str) -> str | None:
        """Why `nn.Module.__setattr__` would do more than store into the instance dict or the buffers."""
        for dict_name, what in (("_parameters", "parameter"), ("_modules", "submodule")):
            if self.has_member(tx, dict_name, name):
                return f"the name of a {what}"
        if issubclass(value.python_type(), (torch.nn.Module, torch.nn.Parameter)):
            return "stores a module or parameter"
        is_buffer = self.has_member(tx, "_buffers", name)
        if is_buffer and not isinstance(value, TensorValue) and not _is_none(value):
            return "not a tensor, under the name of a buffer"
        return None

    def has_member(self, tx: TraceContext, dict_name: str, name: str) -> bool:
        """Whether a parameter, buffer or submodule of this name is there now; that there is none is guarded."""
        members = self.members(tx, dict_name)
        changed = _changed_dict(tx, members)
        if changed is not None:
            return changed.contains(tx, Constant(name))
        if name not in members:
            tx.guards.add(self.member_dict(tx, dict_name), "lacks_key", name)
        return name in members

    def members(self, tx: TraceContext, dict_name: str) -> dict[str, Any]:
        """The dict of parameters, buffers or submodules. Raises Unsupported where there is none."""
        self.check_not_replaced(tx, dict_name)
        found = self.obj.__dict__.get(dict_name)
        if type(found) is not dict:
            raise Unsupported("module-attribute-store", f"{self.describe()} has no dict {dict_name}")
        tx.guards.add(self.member_dict(tx, dict_name), "type_is", dict)
        return found

    def check_not_replaced(self, tx: TraceContext, dict_name: str) -> None:
        """Raises Unsupported if the program has given the module another dict of members."""
        if tx.mutations.load_attr(self, dict_name) is not None:
            raise Unsupported("module-attribute-store", f"{self.describe()}.{dict_name}")

    def member_dict(self, tx: TraceContext, name: str) -> Source:
        """Where the dict of parameters, buffers or submodules is found."""
        assert self.source is not None
        return instance_dict_source(tx, self.obj, self.source, name)

    def own_attr(self, tx: TraceContext, name: str) -> Value | None:
        stored = tx.mutations.load_attr(self, name)
        if stored is not None:
            return stored if isinstance(stored, Value) else None
        own = self.obj.__dict__
        found = own.get(name, MISSING)
        assert self.source is not None
        if found is not MISSING:
            return _wrap_attribute(tx, found, instance_dict_source(tx, self.obj, self.source, name))
        tx.guards.add(OwnDictSource(self.source), "lacks_key", name)
        return None


def _is_uninitialised(module: torch.nn.Module) -> bool:
    """Whether the first call of a lazy module will make its parameters and, often, give it another class."""
    if not is_subtype(type(module), LazyModuleMixin):
        return False
    members = (vars(module).get(name) or {} for name in ("_parameters", "_buffers"))
    return any(is_subtype(type(tensor), UninitializedTensorMixin) for each in members for tensor in each.values())


def _has_members_of_its_own_kind(module: torch.nn.Module) -> bool:
    """Whether the program has replaced a dict of members by one of a class that may look up items in its own way, as DeepSpeed does."""
    kinds = (type(module.__dict__.get(name)) for name in _MEMBER_DICTS)
    return not all(is_one_of(kind, (dict, collections.OrderedDict, types.NoneType)) for kind in kinds)


def _is_none(value: Value) -> bool:
    return value.is_constant() and value.constant() is None
