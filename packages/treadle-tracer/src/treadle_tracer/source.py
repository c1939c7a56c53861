"""Sources: where an outside object of a trace came from.

A source is an immutable chain (`self` -> `self.layers` -> `self.layers[0]`), compared by its parts.

path      the accessors by which a guard reaches the object (docs/contracts.md, section 1)
text      Python that a user recognises
emit(cb)  makes a `CodeBuilder` push the object, in code with the parameters, free variables, globals and builtins of the traced frame
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

from .by_identity import IdentitySet
from .class_facts import is_class, keys_in_order, module_of, namespace_of, own_dict, qualname_of
from .weakly import class_may_change, named_slot, reference_to, referent

Accessor = tuple[Any, ...]
Path = tuple[Accessor, ...]


class Emitter(Protocol):
    """The part of `bytecode.assemble.CodeBuilder` that sources use; every method appends instructions."""

    def load_fast(self, name: str) -> Any: ...
    def load_global(self, name: str) -> Any: ...
    def load_deref(self, name: str) -> Any: ...
    def load_cell(self, name: str) -> Any: ...
    def load_const(self, obj: Any) -> Any: ...
    def load_attr(self, name: str) -> Any: ...
    def binary_subscr(self) -> Any: ...
    def push_null(self) -> Any: ...
    def call(self, count: int) -> Any: ...


class Source:
    """Base of all sources. Sources with equal parts are equal and have equal hashes; objects in them are compared by identity."""

    __slots__ = ("_hash", "_key", "_path", "_text", "base")

    base: Source | None

    def __init__(self, base: Source | None, key: Any):
        self.base = base
        self._key = key
        self._hash = hash((type(self), base, _hashable(key)))
        self._path: Path | None = None
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or not isinstance(other, Source) or self._hash != other._hash:
            return False
        return _same_key(self._key, other._key) and self.base == other.base

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"

    @property
    def path(self) -> Path:
        """Accessors from a root to the object."""
        if self._path is None:
            self._path = (*(self.base.path if self.base is not None else ()), *self._accessors())
        return self._path

    @property
    def text(self) -> str:
        """The object as a user would write it in Python."""
        if self._text is None:
            self._text = self._write()
        return self._text

    def _write(self) -> str:
        raise NotImplementedError

    @property
    def root(self) -> Source:
        """The first source of the chain."""
        source: Source = self
        while source.base is not None:
            source = source.base
        return source

    def chain(self) -> Iterator[Source]:
        """The source, the one that it is reached from, and so on up to the root."""
        source: Source | None = self
        while source is not None:
            yield source
            source = source.base

    def _accessors(self) -> Path:
        raise NotImplementedError

    def emit(self, cb: Emitter) -> None:
        """Append instructions that push the object."""
        raise NotImplementedError


class Identity:
    """A key that equals itself only as long as it wraps the same object."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any):
        self.obj = obj

    def __hash__(self) -> int:
        return id(self.obj)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.obj is other.obj


_COMPARED_BY_VALUE = IdentitySet((str, int, float, bytes, bool, type(None), Identity))


def _hashable(key: Any) -> Any:
    """What to hash for a key: its value where that runs no code of the program, else its identity."""
    kind = type(key)
    if kind is tuple:
        return tuple(map(_hashable, key))
    return key if kind is str or kind in _COMPARED_BY_VALUE or issubclass(kind, Source) else id(key)


def path_key(path: Path) -> Any:
    """A hashable key, equal for equal paths. Objects that are not compared by value count by identity."""
    return tuple(map(_key_of_accessor, path))


def _key_of_accessor(accessor: Accessor) -> Any:
    return (accessor[0], *map(_key_of, accessor[1:]))


class PathKeys:
    """`path_key` of many paths that have accessors in common, as the guards of one entry have: each accessor is looked at once."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[Accessor, Any]] = {}  # by the id of the accessor, which is kept alive

    def of(self, path: Path) -> Any:
        """The key of a path."""
        known = self._keys
        found = []
        for accessor in path:
            pair = known.get(id(accessor))
            if pair is None:
                pair = known[id(accessor)] = (accessor, _key_of_accessor(accessor))
            found.append(pair[1])
        return tuple(found)


def _key_of(value: Any) -> Any:
    """A key that is equal for the same part of a path: numbers are told apart by their types."""
    kind = type(value)
    if kind is tuple:
        return tuple(map(_key_of, value))
    return (kind.__name__, value) if kind is str or kind in _COMPARED_BY_VALUE else id(value)


def _same_key(a: Any, b: Any) -> bool:
    kind = type(a)
    if a is b:
        return True
    if kind is not type(b):
        return False
    if kind is tuple:
        return len(a) == len(b) and all(map(_same_key, a, b))
    return (kind is str or kind in _COMPARED_BY_VALUE or issubclass(kind, Source)) and a == b


# ---- roots


class _NamedRoot(Source):
    """What the traced frame finds by name. A subclass names the guard's accessor and the emitter's method."""

    __slots__ = ("name",)

    accessor: ClassVar[str]
    load: ClassVar[str]

    def __init__(self, name: str):
        self.name = name
        super().__init__(None, name)

    def _write(self) -> str:
        return self.name

    def _accessors(self) -> Path:
        return ((self.accessor, self.name),)

    def emit(self, cb: Emitter) -> None:
        getattr(cb, self.load)(self.name)


class LocalSource(_NamedRoot):
    """A parameter of the traced frame, by name."""

    __slots__ = ()
    accessor, load = "local", "load_fast"


class BuiltinSource(_NamedRoot):
    """A name in the frame's builtins. The globals must not have it; `lacks_key` guards that."""

    __slots__ = ()
    accessor, load = "builtin", "load_global"


class GlobalsSource(Source):
    """The dict of the traced frame's globals."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None, None)

    def _write(self) -> str:
        return "globals()"

    def _accessors(self) -> Path:
        return (("globals",),)

    def emit(self, cb: Emitter) -> None:
        cb.push_null()
        cb.load_const(globals)
        cb.call(0)


class ClosureSource(_NamedRoot):
    """The contents of a free variable of the traced frame."""

    __slots__ = ()
    accessor, load = "closure", "load_deref"


class ClosureCellSource(_NamedRoot):
    """The cell of a free variable of the traced frame; its contents are a `ClosureSource`."""

    __slots__ = ()
    accessor, load = "closure_cell", "load_cell"

    def _write(self) -> str:
        return f"<cell of {self.name}>"


class GlobalSource(Source):
    """A module-level name of the traced frame, or of an inlined function's module; `globals_of` is the source of that module's dict."""

    __slots__ = ("name",)

    def __init__(self, name: str, globals_of: Source | None = None):
        self.name = name
        super().__init__(globals_of, name)

    @property
    def globals_of(self) -> Source | None:
        return self.base

    def _write(self) -> str:
        return self.name if self.base is None else f"{self.base.text}[{self.name!r}]"

    def _accessors(self) -> Path:
        return (("global", self.name),) if self.base is None else (("dict_item", self.name),)

    def emit(self, cb: Emitter) -> None:
        if self.base is None:
            cb.load_global(self.name)
            return
        self.base.emit(cb)
        cb.load_const(self.name)
        cb.binary_subscr()


class ConstSource(Source):
    """An object found by import. It is a constant of the replacement code and needs no guard. Compared by identity.

    It is referred to weakly: the program keeps it alive, and the entry's guards tell when it is gone. With `is_made` it is an object that
    only the trace has.
    """

    __slots__ = ("_held", "_is_weak", "label")

    def __init__(self, obj: Any, label: str | None = None, *, is_made: bool = False):
        self._held = obj if is_made else reference_to(obj)
        self._is_weak = self._held is not obj
        self.label = label
        super().__init__(None, Identity(self._held))

    @property
    def obj(self) -> Any:
        """The object; None when it is gone."""
        return referent(self._held) if self._is_weak else self._held

    def _write(self) -> str:
        if self.label is not None:
            return self.label
        obj = self.obj
        if is_class(obj):
            return f"{module_of(obj)}.{qualname_of(obj)}"
        if class_may_change(type(obj)):  # a name or key may be code of the program
            return f"<{qualname_of(type(obj))}>"
        name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
        module = getattr(obj, "__module__", None)
        if isinstance(name, str):
            return f"{module}.{name}" if isinstance(module, str) else name
        if type(obj) is dict and type(obj.get("__name__")) is str:
            return f"vars({obj['__name__']})"
        return f"<{qualname_of(type(obj))}>"

    def _accessors(self) -> Path:
        return (("referent" if self._is_weak else "const", self._held),)

    def emit(self, cb: Emitter) -> None:
        cb.load_const(self.obj)


# ---- steps


class _Step(Source):
    """A source that one accessor with a key reaches from another source."""

    __slots__ = ("key",)

    accessor: ClassVar[str]
    base: Source

    def __init__(self, base: Source, key: Any):
        self.key = key
        super().__init__(base, key)

    def _accessors(self) -> Path:
        return ((self.accessor, self.key),)


class AttrSource(_Step):
    """`getattr(base, name)`."""

    __slots__ = ()
    accessor = "attr"

    @property
    def name(self) -> str:
        return self.key

    def _write(self) -> str:
        return f"{self.base.text}.{self.key}"

    def emit(self, cb: Emitter) -> None:
        self.base.emit(cb)
        cb.load_attr(self.key)


class InstanceDictSource(_Step):
    """`base.__dict__[name]`, without descriptors."""

    __slots__ = ()
    accessor = "instance_dict"

    @property
    def name(self) -> str:
        return self.key

    def _write(self) -> str:
        return f"{self.base.text}.{self.key}"

    def emit(self, cb: Emitter) -> None:
        self.base.emit(cb)
        cb.load_attr("__dict__")
        cb.load_const(self.key)
        cb.binary_subscr()


def is_passed(source: Source) -> bool:
    """Whether the caller passes what is at a source, itself or in a container or object, and not as a parameter of a module."""
    chain = list(source.chain())
    is_of_module = any(isinstance(step, InstanceDictSource) and step.key == "_parameters" for step in chain)
    return isinstance(chain[-1], LocalSource) and not is_of_module


class HiddenDictSource(InstanceDictSource):
    """As `InstanceDictSource`, of an object whose class has a say in what `base.__dict__` gives."""

    __slots__ = ()

    def emit(self, cb: Emitter) -> None:
        cb.push_null()
        cb.load_const(_own_item)
        self.base.emit(cb)
        cb.load_const(self.key)
        cb.call(2)


def _own_item(obj: Any, name: str) -> Any:
    return own_dict(obj)[name]


class _FixedAttribute(Source):
    """An attribute that is the same for all sources of a class. attribute: its name; accessor: how a guard reads it."""

    __slots__ = ()
    attribute: ClassVar[str]
    accessor: ClassVar[Accessor]
    base: Source

    def __init__(self, base: Source):
        super().__init__(base, None)

    def _write(self) -> str:
        return f"{self.base.text}.{self.attribute}"

    def _accessors(self) -> Path:
        return (self.accessor,)

    def emit(self, cb: Emitter) -> None:
        self.base.emit(cb)
        cb.load_attr(self.attribute)


class OwnDictSource(_FixedAttribute):
    """`base.__dict__`, past descriptors."""

    __slots__ = ()
    attribute = "__dict__"
    accessor = ("own_dict",)


class CellContentsSource(_FixedAttribute):
    """`base.cell_contents`, base being a cell object."""

    __slots__ = ()
    attribute = "cell_contents"
    accessor = ("attr", "cell_contents")


class SlotSource(Source):
    """What a slot of `base` holds; `descriptor` is the member or getset descriptor of the class, which is not kept alive."""

    __slots__ = ("_held", "name")
    base: Source

    def __init__(self, base: Source, descriptor: Any):
        self.name: str = descriptor.__name__
        slot = named_slot(descriptor)
        self._held = descriptor if slot is None else slot
        super().__init__(base, Identity(descriptor) if slot is None else (Identity(slot[0]), self.name))

    def _write(self) -> str:
        return f"{self.base.text}.{self.name}"

    def _accessors(self) -> Path:
        return (("descriptor", self._held) if isinstance(self._held, _DESCRIPTORS) else ("slot", self._held),)

    def emit(self, cb: Emitter) -> None:
        cb.push_null()
        cb.load_const(_slot_value)
        cb.load_const(self._held)
        self.base.emit(cb)
        cb.call(2)


_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _slot_value(slot: Any, owner: Any) -> Any:
    descriptor = slot if isinstance(slot, _DESCRIPTORS) else namespace_of(referent(slot[0]))[slot[1]]
    return descriptor.__get__(owner)


class ModuleAttrSource(Source):
    """An attribute of a Python module, held by the module's dict."""

    __slots__ = ("module", "name")

    def __init__(self, module: Any, name: str):
        self.module = module
        self.name = name
        super().__init__(None, (name, Identity(module)))

    def _write(self) -> str:
        return f"{self.module.__name__}.{self.name}"

    def _accessors(self) -> Path:
        return (("const", self.module.__dict__), ("dict_item", self.name))

    def emit(self, cb: Emitter) -> None:
        cb.load_const(self.module)
        cb.load_attr(self.name)


class ItemSource(_Step):
    """`base[key]` by the object's own `__getitem__`."""

    __slots__ = ()
    accessor = "item"

    def _write(self) -> str:
        return f"{self.base.text}[{_key_text(self.key)}]"

    def emit(self, cb: Emitter) -> None:
        self.base.emit(cb)
        cb.load_const(self.key)
        cb.binary_subscr()


class ListItemSource(ItemSource):
    """`list.__getitem__(base, index)`; for a subclass of list too."""

    __slots__ = ()
    accessor = "list_item"
    method: ClassVar[Callable[..., Any]] = list.__getitem__

    def emit(self, cb: Emitter) -> None:
        # The plain slot function, not `base[key]`: a subclass (torch.Size, ModuleList's list, OrderedDict ...) may override __getitem__.
        cb.push_null()
        cb.load_const(type(self).method)
        self.base.emit(cb)
        cb.load_const(self.key)
        cb.call(2)


class TupleItemSource(ListItemSource):
    """`tuple.__getitem__(base, index)`; for a subclass of tuple too."""

    __slots__ = ()
    accessor = "tuple_item"
    method = tuple.__getitem__


class DictItemSource(ListItemSource):
    """`dict.__getitem__(base, key)` without `__missing__` of a subclass; the key is a constant or found by identity."""

    __slots__ = ()
    accessor = "dict_item"
    method = dict.__getitem__


class DictItemOfSource(DictItemSource):
    """As `DictItemSource`, for a key that is referred to weakly: `key` is the reference."""

    __slots__ = ()
    accessor = "dict_item_of"

    def emit(self, cb: Emitter) -> None:
        cb.push_null()
        cb.load_const(_item_of)
        self.base.emit(cb)
        cb.load_const(self.key)
        cb.call(2)

    def _write(self) -> str:
        return f"{self.base.text}[{_key_text(referent(self.key))}]"


def _item_of(mapping: dict[Any, Any], reference: Any) -> Any:
    return dict.__getitem__(mapping, reference())


def dict_item_source(base: Source, key: Any) -> DictItemSource:
    """`dict.__getitem__(base, key)`, the key referred to weakly where it can be."""
    reference = reference_to(key)
    return DictItemSource(base, key) if reference is key else DictItemOfSource(base, reference)


class DictKeySource(_Step):
    """The i-th key of a dict in the order of iteration."""

    __slots__ = ()
    accessor = "dict_key"

    def _write(self) -> str:
        return f"list({self.base.text})[{self.key}]"

    def emit(self, cb: Emitter) -> None:
        cb.push_null()
        cb.load_const(_nth_key)
        self.base.emit(cb)
        cb.load_const(self.key)
        cb.call(2)


def _nth_key(mapping: dict[Any, Any], index: int) -> Any:
    return (keys_in_order(mapping) if isinstance(mapping, dict) else list(mapping))[index]  # the other: a mapping proxy


class ApplySource(Source):
    """`function(base)` for a pure function, a constant of the code (`list(d.items())` and the like)."""

    __slots__ = ("function",)
    base: Source

    def __init__(self, base: Source, function: Callable[[Any], Any]):
        self.function = function
        super().__init__(base, Identity(function))

    def _write(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}({self.base.text})"

    def _accessors(self) -> Path:
        return (("apply", self.function),)

    def emit(self, cb: Emitter) -> None:
        cb.push_null()
        cb.load_const(self.function)
        self.base.emit(cb)
        cb.call(1)


class AliasSource(ApplySource):
    """A tensor that `function` makes anew of the one at `base` in every call: another object with the same elements."""

    __slots__ = ()


def _key_text(key: Any) -> str:
    if type(key) is tuple:
        return f"({', '.join(map(_key_text, key))}{',' if len(key) == 1 else ''})"
    return repr(key) if type(key) in _COMPARED_BY_VALUE else f"<{qualname_of(type(key))}>"
