"""The code object that replaces a traced frame: call the graph, replay the writes, rebuild what the frame returns.

Order of a replacement:

1. call the compiled graph with its inputs loaded from their sources, and keep the results;
2. if the trace wrote anything outside, build every value that is stored or returned *before* the first store, because a source (`self.x`)
   means the object that was there when the frame was entered;
3. replay the stores;
4. return the value, or (`output.resume`) run the breaking instruction and call a continuation.

One traced object becomes one real object. A value that is needed twice is kept in a temporary; a list, dict or set that contains itself is
made empty first and filled afterwards. A dry run over the same code, with an emitter that writes nothing, finds these values and the graph
nodes that must be outputs.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import treadle_frame

from ..by_identity import IdentityDict
from ..errors import InternalError, Unsupported
from ..values.base import NULL, Constant, settled
from ..values.growing import OutsideList
from ..values.value import Value
from .emit import check_constant
from .mutations import DELETED, Mutations
from .own_memory import has_own_memory

if TYPE_CHECKING:
    import torch

    from ..source import Source


class _Nothing:
    """A CodeBuilder whose every method does nothing."""

    refused: Mapping[int, Any] = {}

    def load_const(self, value: object) -> None:
        check_constant(value, self.refused)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._ignore

    def computed_callable(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _ignore(self, *args: Any, **kwargs: Any) -> Any:
        return None


class Usage:
    """The results of a dry run: how often each object is needed, which objects contain themselves, which graph nodes are needed.

    leaves: tensors that the program has made leaves of autograd and that leave the graph, as fake tensors, each with the instruction of
    the root frame that made it one.
    referents: objects to which a weak reference leaves the graph, each with the instruction of the root frame that made the reference.
    held: what is needed for more than weak references. references: how many of those are being made.
    classes: made in the trace. They are built first: their attributes may hold instances, which need the class.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.cyclic: set[int] = set()
        self.outputs: dict[Any, int] = {}
        self.leaves: list[tuple[torch.Tensor, int]] = []
        self.referents: list[tuple[Value, int]] = []
        self.held: set[int] = set()
        self.references = 0
        self.classes: list[Value] = []

    def has(self, value: Value) -> bool:
        """Whether the replacement makes the object of this value."""
        return id(value.identity()) in self.counts

    def check_referents(self) -> None:
        """Raises Unsupported for a weak reference to an object that nothing else needs: Python may still have it in a variable."""
        for target, made_at in self.referents:
            if id(target.identity()) not in self.held:
                raise Unsupported("weak-reference", f"a reference to {target.describe()}", (), made_at)


class ReplacementBuilder:
    """Emits code that builds the live values of a trace. `cb` is the CodeBuilder; without one this is a dry run."""

    def __init__(self, mutations: Mutations, usage: Usage, cb: Any = None):
        self.mutations = mutations
        self.usage = usage
        self.dry = cb is None
        self.cb: Any = _Nothing() if cb is None else cb
        self.cb.refused = mutations.made
        self.graph_results: str | None = None
        self.temporaries: list[str] = []
        self._names: dict[int, str | None] = {}
        self._in_progress: set[int] = set()
        self._has_classes = False
        self._alive: list[Any] = []  # identities are compared by id()

    # ---- values

    def value(self, value: Value) -> None:
        """Push `value`; every push of one run gives the same object."""
        if not self._has_classes and not self.dry:
            self._build_classes()
        value = settled(value)
        if value is NULL:
            self.cb.push_null_here()
            return
        if _is_known(value):
            value.reconstruct(self)
            return
        key = self._key(value)
        if self.dry:
            self.usage.counts[key] = self.usage.counts.get(key, 0) + 1
            if not self.usage.references:
                self.usage.held.add(key)
        if key in self._names:
            self.cb.load_fast(self._names[key])
        elif key in self._in_progress:
            if not self.dry:
                raise InternalError("replacement", f"{value!r} contains itself and was not registered")
            if _FILL.get(value.python_type()) is None:
                raise Unsupported("reconstruct", f"{value.describe()} contains itself")
            self.usage.cyclic.add(key)
        else:
            self._build(value, key)

    def _build_classes(self) -> None:
        self._has_classes = True
        for made in self.usage.classes:
            self.value(made)
            self.cb.pop_top()

    def _build(self, value: Value, key: int) -> None:
        self._in_progress.add(key)
        if value.source is not None:
            value.source.emit(self.cb)
        elif key in self.usage.cyclic and not self.dry:
            self._build_cyclic(value)
        else:
            value.reconstruct(self)
        self._in_progress.discard(key)
        if key not in self._names and (self.dry or self.usage.counts.get(key, 0) > 1):
            self._names[key] = self._keep_top()

    def _build_cyclic(self, value: Value) -> None:
        """Empty container first, so that its members can refer to it; then its contents."""
        kind = value.python_type()
        fill = _FILL.get(kind)
        if fill is None:
            value.reconstruct(self)  # registers itself; if not, `value` reports it
            return
        self.call_const(kind)
        self.register(value)
        self.cb.pop_top()
        self.cb.push_null()
        self.cb.load_const(fill)
        self.value(value)
        value.reconstruct(self)
        self.cb.call(2)

    def register(self, value: Value) -> None:
        """Record that the object on top of the stack is `value`, so that its own parts can refer to it. It stays on the stack."""
        self._names[self._key(settled(value))] = self._keep_top()

    def unfilled_cell(self, cell: Value) -> bool:
        """Push a cell; an empty one, if there is none yet. The result: whether it is empty, so that it has to be filled."""
        key = self._key(cell)
        if cell.source is not None or key in self._names or key in self._in_progress:
            self.value(cell)
            return False
        if self.dry:
            self.usage.counts[key] = self.usage.counts.get(key, 0) + 1
        self.call_const(types.CellType)
        self.register(cell)
        return True

    def graph_output(self, node: Any) -> None:
        """Push the result of a graph node."""
        index = self.usage.outputs.setdefault(node, len(self.usage.outputs))
        self.cb.load_fast(self.graph_results)
        self.cb.load_const(index)
        self.cb.binary_subscr()

    def weak_reference(self, target: Value, made_at: int, cls: Any = weakref.ref, *options: Value) -> None:
        """Push `cls(target, *options)`: a weak reference to an object that the trace has made, or to an outside one."""
        if target.source is None:
            self.usage.referents.append((target, made_at))
        if self.dry:
            self.usage.references += 1
            self.value(target)
            self.usage.references -= 1
            for value in options:
                self.value(value)
        self.cb.call_constant(cls, (target, *options), self.value)

    def has_own_memory(self, node: Any) -> bool:
        """Whether the result of a graph node shares its memory with no other result, and with nothing outside."""
        return node is not None and has_own_memory(node, self.usage.outputs)

    def const(self, obj: Any) -> None:
        """Push this very object; for one that stands for what the trace has made, the real one."""
        made = self.mutations.made.get(id(obj))
        if made is None or made[1] is None:
            self.cb.load_const(obj)
        else:
            around, self._in_progress = self._in_progress, set()
            if self.dry and made[1] not in self.usage.classes:
                self.usage.classes.append(made[1])
            with self.cb.computed_callable():
                self.value(made[1])
            self._in_progress = around

    def call_const(self, function: Callable[..., Any], *values: Value) -> None:
        """Push `function(*values)`; the function is a constant of the code."""
        if self.dry:
            for value in values:
                self.value(value)
        self.cb.call_constant(function, values, self.value)

    def attrs_of(self, value: Value) -> dict[str, Any]:
        """What the trace stored on an object, in order (`Mutations.attrs_of`)."""
        return self.mutations.attrs_of(value)

    def is_cyclic(self, value: Value) -> bool:
        """Whether the object contains itself, as far as the dry run has got."""
        return self._key(value) in self.usage.cyclic

    # ---- temporaries

    def _key(self, value: Value) -> int:
        identity = _identity(value)
        self._alive.append(identity)
        return id(identity)

    def _keep_top(self) -> str | None:
        if self.dry:
            return None
        name = self.temporary()
        self.cb.copy(1)
        self.cb.store_fast(name)
        return name

    def temporary(self) -> str:
        """A fresh local name."""
        name = self.cb.temp()
        self.temporaries.append(name)
        return name

    def delete_temporaries(self) -> None:
        """Release everything kept in temporaries, so that the frame does not hold tensors that the program has released.

        This stores None, because not every path has bound all temporaries. The names stay valid for other paths.
        """
        for name in self.temporaries:
            self.cb.load_const(None)
            self.cb.store_fast(name)


def _is_known(value: Value) -> bool:
    """Whether the object is a constant of the replacement code."""
    return isinstance(value, Constant) and value.source is None and not value.is_computed


def _identity(value: Value) -> Any:
    """What is one object at every call. Constants from two places are equal, and may be two objects."""
    return value if isinstance(value, Constant) else value.identity()


# ---- the parts of a replacement


def emit_graph_call(builder: ReplacementBuilder, compiled: Callable[..., Any], inputs: Iterable[Source]) -> None:
    """Emit the call of the compiled graph, and keep its result."""
    cb = builder.cb
    cb.call_constant(compiled, inputs, lambda source: source.emit(cb))
    if builder.usage.outputs:
        builder.graph_results = builder.temporary()
        cb.store_fast(builder.graph_results)
    else:
        cb.pop_top()


def emit_state_changes(
    builder: ReplacementBuilder, changes: Iterable[tuple[Callable[..., Any], tuple[Any, ...]]]
) -> None:
    """Set torch's switches (grad mode and the like) as the traced code has left them."""
    cb = builder.cb
    for setter, arguments in changes:
        cb.call_constant(setter, arguments, cb.load_const)
        cb.pop_top()


class Effects:
    """The writes of a trace and the values it returns, in the order of steps 2 to 4 of the module docstring."""

    def __init__(self, builder: ReplacementBuilder, results: list[Value]):
        self.builder = builder
        self.results = [settled(value) for value in results]
        self._ready: dict[int, str | None] = {}

    def prepare(self) -> None:
        """Build everything into temporaries, then replay the writes; afterwards `push` loads results."""
        stores = list(self._stores(self.builder.mutations))
        self._build([("value", value) for value in self.results])
        for parts, _ in stores:
            self._build(parts)
        for parts, replay in stores:
            replay(*[self._pusher(part) for part in parts])

    def push(self, value: Value) -> None:
        """Push one of the results."""
        self._push(("value", settled(value)))

    # A part is ("value", Value), the object itself, or ("contents", container), a fresh container with its contents.

    def _build(self, parts: list[tuple[str, Value]]) -> None:
        for how, value in parts:
            key = _part_key(how, value)
            if how == "value" and (value is NULL or _is_known(value)) or key in self._ready:
                continue
            if how == "contents":
                contents: Any = value
                contents.reconstruct_contents(self.builder)
            else:
                self.builder.value(value)
            self._ready[key] = None
            if not self.builder.dry:
                self._ready[key] = self.builder.temporary()
                self.builder.cb.store_fast(self._ready[key])

    def _push(self, part: tuple[str, Value]) -> None:
        key = _part_key(*part)
        if key in self._ready:
            self.builder.cb.load_fast(self._ready[key])
        else:
            self.builder.value(part[1])

    def _pusher(self, part: tuple[str, Value]) -> Callable[[], None]:
        return lambda: self._push(part)

    def _stores(self, mutations: Mutations) -> Iterable[tuple[list[tuple[str, Value]], Callable[..., None]]]:
        for function, values in mutations.outputs:  # first: stores of the program may change where later output goes
            yield [("value", settled(value)) for value in values], self._replay_output(function)
        for container in mutations.containers():
            container = settled(container)
            calls = container.calls_to_replay()
            for function, args in calls or ():
                yield [("value", container), *(("value", settled(arg)) for arg in args)], self._replay_call(function)
            if calls is None:
                yield [("value", container), ("contents", container)], self._replay_contents(container)
        for obj, name, value in mutations.attr_stores():
            obj = settled(obj)
            if obj.source is None:
                continue  # made in the trace: its reconstruct sets its attributes
            if value is DELETED:
                yield [("value", obj)], self._replay_delete_attr(obj, name)
            else:
                yield [("value", obj), ("value", settled(value))], self._replay_store_attr(obj, name)
        for source, name, value in mutations.global_stores():
            if value is DELETED:
                yield [], self._replay_delete_global(source, name)
            else:
                yield [("value", settled(value))], self._replay_store_global(source, name)
        for cell, value in mutations.cell_stores():
            cell = settled(cell)
            if cell.source is None:
                continue  # made in the trace: built with its contents
            if value is DELETED:
                yield [("value", cell)], self._replay_delete_cell
            else:
                yield [("value", cell), ("value", settled(value))], self._replay_store_cell

    def _replay_output(self, function: Callable[..., Any]) -> Callable[..., None]:
        return lambda *values: self._call(functools.partial(_outside_the_hook, function), *values)

    def _call(self, function: Callable[..., Any], *pushes: Callable[[], None]) -> None:
        cb = self.builder.cb
        cb.call_constant(function, pushes, lambda push: push())
        cb.pop_top()

    def _replay_call(self, function: Callable[..., Any]) -> Callable[..., None]:
        return lambda *parts: self._call(function, *parts)

    def _replay_contents(self, container: Value) -> Callable[..., None]:
        is_grown = isinstance(container, OutsideList) and container.is_unread
        refill = list.extend if is_grown else _refill_for(container.python_type())
        return lambda target, contents: self._call(refill, target, contents)

    def _replay_store_attr(self, obj: Value, name: str) -> Callable[..., None]:
        store = next(store for base, store, _ in _ATTRIBUTES if issubclass(obj.python_type(), base))
        return lambda target, value: self._call(store, target, lambda: self.builder.const(name), value)

    def _replay_delete_attr(self, obj: Value, name: str) -> Callable[..., None]:
        delete = next(delete for base, _, delete in _ATTRIBUTES if issubclass(obj.python_type(), base))
        return lambda target: self._call(delete, target, lambda: self.builder.const(name))

    def _replay_store_global(self, source: Source | None, name: str) -> Callable[..., None]:
        def replay(value: Callable[[], None]) -> None:
            if source is None:
                value()
                self.builder.cb.store_global(name)
            else:
                self._call(dict.__setitem__, self._emitter(source), lambda: self.builder.const(name), value)

        return replay

    def _replay_delete_global(self, source: Source | None, name: str) -> Callable[..., None]:
        def replay() -> None:
            where = self._push_globals if source is None else self._emitter(source)
            self._call(_delete_key, where, lambda: self.builder.const(name))

        return replay

    def _emitter(self, source: Source) -> Callable[[], None]:
        return lambda: source.emit(self.builder.cb)

    def _push_globals(self) -> None:
        cb = self.builder.cb
        cb.push_null()
        cb.load_const(globals)
        cb.call(0)

    def _replay_store_cell(self, cell: Callable[[], None], value: Callable[[], None]) -> None:
        value()
        cell()
        self.builder.cb.store_attr("cell_contents")

    def _replay_delete_cell(self, cell: Callable[[], None]) -> None:
        self._call(_empty_cell, cell)


def _part_key(how: str, value: Value) -> int:
    return (id(_identity(value)) << 1) | (how == "contents")


# ---- run-time helpers of replacement code


def _outside_the_hook(function: Callable[..., Any], *values: Any) -> None:
    state = treadle_frame.set_handler(None)
    try:
        function(*values)
    finally:
        treadle_frame.set_handler(state)


def _empty_cell(cell: Any) -> None:
    try:
        del cell.cell_contents
    except ValueError:
        pass


def _delete_key(mapping: dict[Any, Any], key: Any) -> None:
    mapping.pop(key, None)  # a name that was both stored and deleted in the trace may not be there


def _delete_type_attr(obj: type, name: str) -> None:
    if name in vars(obj):
        type.__delattr__(obj, name)


def _delete_object_attr(obj: Any, name: str) -> None:
    try:
        object.__delattr__(obj, name)
    except AttributeError:
        pass  # stored and deleted again in the trace


def _delete_local(obj: Any, name: str) -> None:
    vars(obj).pop(name, None)


def _set_context_variable(variable: contextvars.ContextVar[Any], name: str, value: Any) -> None:
    variable.set(value)


# How attributes of objects are stored and deleted, most derived class first. What was stored and deleted again in the trace may be missing.
_ATTRIBUTES: tuple[tuple[type, Callable[[Any, str, Any], None], Callable[[Any, str], None]], ...] = (
    (type, type.__setattr__, _delete_type_attr),
    (threading.local, setattr, _delete_local),
    (contextvars.ContextVar, _set_context_variable, _delete_object_attr),
    (object, object.__setattr__, _delete_object_attr),
)


def _refill_list(target: list[Any], contents: list[Any]) -> None:
    list.__setitem__(target, slice(None), contents)


def _refill_dict(target: dict[Any, Any], contents: dict[Any, Any]) -> None:
    dict.clear(target)
    dict.update(target, contents)


def _refill_ordered_dict(target: Any, contents: dict[Any, Any]) -> None:
    collections.OrderedDict.clear(target)
    for key, value in contents.items():
        collections.OrderedDict.__setitem__(target, key, value)


def _refill_set(target: set[Any], contents: set[Any]) -> None:
    set.clear(target)
    set.update(target, contents)


def _refill_deque(target: collections.deque[Any], contents: Iterable[Any]) -> None:
    contents = list(contents)
    collections.deque.clear(target)
    collections.deque.extend(target, contents)


# Most derived first: an OrderedDict is a dict.
_REFILL: tuple[tuple[type, Callable[..., None]], ...] = (
    (collections.OrderedDict, _refill_ordered_dict),
    (dict, _refill_dict),
    (list, _refill_list),
    (set, _refill_set),
    (collections.deque, _refill_deque),
)


def _refill_for(kind: type) -> Callable[..., None]:
    for base, refill in _REFILL:
        if issubclass(kind, base):
            return refill
    raise InternalError("replacement", f"no way to replay a changed {kind.__qualname__}")


def _fill(refill: Callable[..., None]) -> Callable[[Any, Any], Any]:
    def fill(target: Any, contents: Any) -> Any:
        refill(target, contents)
        return target

    return fill


_FILL: IdentityDict[type, Callable[[Any, Any], Any]] = IdentityDict(
    {
        list: _fill(_refill_list),
        dict: _fill(_refill_dict),
        set: _fill(_refill_set),
    }
)
