"""What every traced value answers, and the kinds that hold nothing but a known Python object.

Methods take the `Tracer` as `tx`. A value never imports the tracer or the wrapper: it reaches both through `tx`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.trace.tracer import Tracer


class Raised(Exception):
    """A Python exception of the traced program on its way through traced frames."""

    def __init__(self, value: Value):
        self.value = value
        super().__init__(value)


class NotConstant(Exception):
    """The value cannot be turned into a Python object at trace time."""


class Missing:
    """Type of `MISSING`, which stands for 'no such thing' where None is a possible answer."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


class Value:
    """Base of all values. `source` says where the outside object is found again; None for what the trace made."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None):
        self.source = source

    # ---- what it is

    def python_type(self) -> type:
        raise NotImplementedError(type(self).__name__)

    def constant(self) -> Any:
        """The Python object it stands for, to compute with at trace time. Raises NotConstant."""
        raise NotConstant(self)

    def is_constant(self) -> bool:
        try:
            self.constant()
        except NotConstant:
            return False
        return True

    def identity(self) -> Any:
        """An object that is identical for values standing for the same Python object."""
        return self

    def hash_key(self, tx: Tracer) -> Any:
        """A hashable stand-in that compares as the traced object would as a dictionary key."""
        return tx.hash_key_of(self)

    def describe(self) -> str:
        """Short text for messages."""
        return self.source.text if self.source is not None else f"a {self.python_type().__name__}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    # ---- attributes and calls

    def get_attr(self, tx: Tracer, name: str) -> Value:
        found = tx.lookup(self.python_type(), name)
        if found is MISSING:
            tx.raise_exception(AttributeError, f"{self.python_type().__name__!r} object has no attribute {name!r}")
        return tx.bind(self, found, name)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        raise Unsupported("attribute-store", f"{self.describe()}.{name}")

    def del_attr(self, tx: Tracer, name: str) -> None:
        raise Unsupported("attribute-store", f"del {self.describe()}.{name}")

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise Unsupported("call", self.describe())

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.call(self.get_attr(tx, name), args, kwargs)

    def builtin_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Carry out method `name` of a built-in type on this value."""
        raise Unsupported("builtin-method", f"{self.python_type().__name__}.{name}")

    # ---- protocols

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return tx.call_special(self, "__getitem__", [key])

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        tx.call_special(self, "__setitem__", [key, value])

    def del_item(self, tx: Tracer, key: Value) -> None:
        tx.call_special(self, "__delitem__", [key])

    def iterate(self, tx: Tracer) -> Value:
        """`iter(self)`."""
        return tx.special_iterator(self)

    def next(self, tx: Tracer) -> Value | None:
        """The next item, or None when the iterator is exhausted."""
        try:
            return tx.call_special(self, "__next__", [])
        except Raised as raised:
            if issubclass(raised.value.python_type(), StopIteration):
                return None
            raise

    def truth(self, tx: Tracer) -> bool:
        return tx.object_truth(self)

    def length(self, tx: Tracer) -> int:
        return tx.special_length(self)

    def unpack(self, tx: Tracer) -> list[Value]:
        """All items, realised."""
        iterator = self.iterate(tx)
        items: list[Value] = []
        while (item := iterator.next(tx)) is not None:
            items.append(item)
        return items

    def contains(self, tx: Tracer, item: Value) -> bool:
        return tx.generic_contains(self, item)

    # ---- out of the trace

    def reconstruct(self, cg: Any) -> None:
        """Emit bytecode that pushes the object; `cg` is an output.replacement.ReplacementBuilder."""
        if self.source is None:
            raise Unsupported("reconstruct", self.describe())
        self.source.emit(cg.cb)


class Null(Value):
    """The NULL that stands on the operand stack beside callables."""

    __slots__ = ()

    def python_type(self) -> type:
        return type(None)

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()


NULL = Null()


class LazyValue(Value):
    """An outside object that nothing has looked at yet, so that nothing is guarded. Lives in containers and locals only."""

    __slots__ = ("obj", "value")

    def __init__(self, obj: Any, source: Source):
        self.source = source
        self.obj = obj
        self.value: Value | None = None

    def force(self, tx: Tracer) -> Value:
        if self.value is None:
            self.value = tx.wrap(self.obj, self.source)
        return self.value

    def python_type(self) -> type:
        return type(self.obj)

    def reconstruct(self, cg: Any) -> None:
        if self.value is not None:
            cg.value(self.value)
        else:
            super().reconstruct(cg)


class ConcreteValue(Value):
    """A value that is one known Python object: constants, classes, functions, modules. `obj` is that object."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source | None = None):
        self.source = source
        self.obj = obj

    def python_type(self) -> type:
        return type(self.obj)

    def constant(self) -> Any:
        return self.obj

    def is_constant(self) -> bool:
        return True

    def identity(self) -> Any:
        return self.obj

    def hash_key(self, tx: Tracer) -> Any:
        return self.obj

    def describe(self) -> str:
        name = getattr(self.obj, "__qualname__", None)
        if not isinstance(name, str):
            return self.source.text if self.source is not None else repr(self.obj)[:80]
        module = getattr(self.obj, "__module__", None)
        return f"{module}.{name}" if module else name

    def reconstruct(self, cg: Any) -> None:
        cg.const(self.obj)


class Constant(ConcreteValue):
    """An immutable Python object compared by value: None, numbers, strings, dtypes, devices, enum members, ..."""

    __slots__ = ()

    def describe(self) -> str:
        text = repr(self.obj)
        return text if len(text) <= 60 else text[:57] + "..."

    def truth(self, tx: Tracer) -> bool:
        return bool(self.obj)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        obj = self.obj
        try:
            attr = getattr(obj, name)
        except AttributeError as error:
            tx.raise_real(error)
        if isinstance(attr, BOUND_BUILTIN) and getattr(attr, "__self__", None) is obj:
            return Method(self, name, attr)
        source = None
        if not tx.is_constant_object(attr):
            source = tx.constant_source(attr)
        return tx.wrap(attr, source)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        attr = getattr(self.obj, name, MISSING)
        if isinstance(attr, BOUND_BUILTIN) and attr.__self__ is self.obj:
            return self.builtin_method(tx, name, args, kwargs)
        return tx.call(self.get_attr(tx, name), args, kwargs)

    def builtin_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        args = [Constant(tuple(tx.unpack_constants(a))) if name == "join" else a for a in args]
        return tx.fold(getattr(self.obj, name), args, kwargs)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.raise_exception(TypeError, f"{type(self.obj).__name__!r} object is not callable")

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return tx.fold(_subscript, [self, key], {})

    def iterate(self, tx: Tracer) -> Value:
        try:
            items = list(self.obj)
        except TypeError as error:
            tx.raise_real(error)
        return tx.list_iterator([tx.from_constant(item) for item in items])

    def length(self, tx: Tracer) -> int:
        try:
            return len(self.obj)
        except TypeError as error:
            tx.raise_real(error)

    def contains(self, tx: Tracer, item: Value) -> bool:
        return bool(tx.fold(_contains, [self, item], {}).constant())


def _subscript(obj: Any, key: Any) -> Any:
    return obj[key]


def _contains(obj: Any, item: Any) -> Any:
    return item in obj


BOUND_BUILTIN = (type([].append), type((1).__add__))  # builtin_function_or_method, method-wrapper

NONE = Constant(None)
TRUE = Constant(True)
FALSE = Constant(False)


def boolean(flag: bool) -> Constant:
    return TRUE if flag else FALSE


class Method(Value):
    """A built-in method bound to a value; `function` is the descriptor or bound method it was found as."""

    __slots__ = ("function", "name", "owner")

    def __init__(self, owner: Value, name: str, function: Any):
        self.source = None
        self.owner = owner
        self.name = name
        self.function = function

    def python_type(self) -> type:
        return BOUND_BUILTIN[0]

    def describe(self) -> str:
        return f"{self.owner.describe()}.{self.name}"

    def identity(self) -> Any:
        return self

    def hash_key(self, tx: Tracer) -> Any:
        return (self.owner.hash_key(tx), self.name)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name in ("__name__", "__qualname__", "__doc__", "__module__"):
            return tx.wrap(getattr(self.function, name, None), None)
        return super().get_attr(tx, name)

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.call_builtin_method(self.owner, self.name, self.function, args, kwargs)

    def truth(self, tx: Tracer) -> bool:
        return True

    def reconstruct(self, cg: Any) -> None:
        bind = getattr(self.function, "__get__", None)
        if bind is None:
            cg.value(self.owner)
            cg.cb.load_attr(self.name)
            return
        cg.cb.push_null()  # binding the very descriptor: what super() finds is not what the attribute gives
        cg.const(bind)
        cg.value(self.owner)
        cg.cb.call(1)
