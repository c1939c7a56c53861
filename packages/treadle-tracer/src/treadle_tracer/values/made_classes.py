"""Classes that the traced program makes: class statements, `type(name, bases, namespace)`, and what decorators make of a class.

The trace makes a shadow class (`values.shadows`) with the bases, names and descriptors of the real one, and looks everything up on that.
No code of the program runs meanwhile: `__init_subclass__` and `__set_name__` are traced as calls. A class that leaves the trace is made
for real after the graph: first with its constants, and with None in place of all else, so that its functions can refer to it; then with
its attributes; then come the steps that the program has carried out on it since, in order.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, ConcreteValue, Constant
from treadle_tracer.values.cells import CellValue
from treadle_tracer.values.class_lookup import MISSING, find_in_mro, lookup
from treadle_tracer.values.constant_objects import ConstantObject
from treadle_tracer.values.constants import is_trusted_function
from treadle_tracer.values.functions import ClassValue, FunctionValue
from treadle_tracer.values.mappings import DictValue, dict_of
from treadle_tracer.values.objects import SuperValue
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.shadows import MadeDescriptor, register, register_generated, shadow_dict, shadow_of
from treadle_tracer.values.value import Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class MadeClass(ClassValue):
    """A class that the trace has made; `obj` is its shadow.

    maker  a function and values of which it makes the real class
    late   attributes to set then, in the order of the class's dict
    steps  functions to call then with the class and values
    """

    __slots__ = ("late", "maker", "steps")

    def __init__(self, obj: type, maker: tuple[Callable[..., Any], tuple[Value, ...]], late: list[tuple[str, Value]]):
        super().__init__(obj)
        self.maker = maker
        self.late = [(Constant(name), value) for name, value in late]
        self.steps: list[tuple[Callable[..., Any], tuple[Value, ...]]] = []

    def is_constant(self) -> bool:
        return False  # it is another class at every call

    def apply(
        self,
        tx: TraceContext,
        function: Callable[..., Any],
        *values: Value,
        on_shadow: Callable[..., Any] | None = None,
    ) -> None:
        """Call `function(class, *values)` on the real class later, and now on the shadow; `on_shadow` does that in its place."""
        tx.mutations.begin_write()
        plain = [shadow_of(tx, value) for value in values]
        try:
            (on_shadow or function)(self.obj, *plain)
        except (TypeError, ValueError, AttributeError) as error:
            tx.raise_real(error)
        self.steps.append((function, values))
        tx.lookup_cache.clear()
        register_generated(tx, self.obj)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        setter = lookup(tx, type(self.obj), "__setattr__")
        if isinstance(setter, types.FunctionType):
            tx.inline(tx.wrap_known(setter), [self, Constant(name), value], {})
        else:
            self.apply(tx, type.__setattr__, Constant(name), value)

    def del_attr(self, tx: TraceContext, name: str) -> None:
        deleter = lookup(tx, type(self.obj), "__delattr__")
        if isinstance(deleter, types.FunctionType):
            tx.inline(tx.wrap_known(deleter), [self, Constant(name)], {})
        else:
            self.apply(tx, type.__delattr__, Constant(name))

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__init__":  # type.__init__
            return NONE
        if name in ("__setattr__", "__delattr__"):
            self.apply(tx, getattr(type, name), *args)
            return NONE
        if name in ("__hash__", "__reduce__", "__reduce_ex__", "__sizeof__"):
            raise Unsupported("class-definition", f"{self.describe()}.{name}")
        return super().builtin_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        function, values = self.maker
        cg.call_const(function, *values)
        cg.register(self)
        for name, value in self.late:
            cg.call_const(_set_attribute, self, name, value)
            cg.cb.pop_top()
        for step, values in self.steps:
            cg.call_const(step, self, *values)
            cg.cb.pop_top()


# ---- type.__new__


class _Quiet:
    """First base of a class while it is made, so that no `__init_subclass__` of the program runs."""

    def __init_subclass__(cls) -> None:
        pass


def _create(
    meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any], keywords: dict[str, Any] | None
) -> type:
    """`type.__new__`; without keywords (None) it does not call `__init_subclass__`."""
    if keywords is not None:
        return type.__new__(meta, name, bases, dict(namespace), **keywords)
    made = type.__new__(meta, name, (_Quiet, *bases), dict(namespace))
    type.__dict__["__bases__"].__set__(made, bases)
    return made


_WRAPPED_BY_TYPE: dict[str, Any] = {
    "__new__": staticmethod,
    "__init_subclass__": classmethod,
    "__class_getitem__": classmethod,
}
"""What `type.__new__` makes of plain functions with these names."""


def _set_attribute(cls: type, name: str, value: Any) -> None:
    wrapper = _WRAPPED_BY_TYPE.get(name)
    type.__setattr__(cls, name, wrapper(value) if wrapper and isinstance(value, types.FunctionType) else value)


def new_class(tx: TraceContext, meta: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`type.__new__(meta, name, bases, namespace, **kwargs)`."""
    tx.mutations.begin_write()
    name, bases, entries = _arguments(tx, meta, args)
    cell = entries.pop("__classcell__", None)
    entries.setdefault("__module__", Constant(tx.frames[-1].module_name))
    _refuse_constants_told_their_names(tx, entries)
    late = [(key, value) for key, value in entries.items() if not _is_given_early(key, value)]
    names = {key for key, _ in late}
    early = dict_of({key: NONE if key in names else value for key, value in entries.items()})
    plain_bases = tuple(base.obj for base in bases)
    init_subclass: Any = find_in_mro(_line_of(plain_bases), "__init_subclass__")[0]
    function = getattr(init_subclass, "__func__", None)
    is_traced = isinstance(function, types.FunctionType) and not is_trusted_function(function)
    keywords = NONE if is_traced else dict_of(kwargs)
    plain_keywords = None if is_traced else {key: shadow_of(tx, value) for key, value in kwargs.items()}
    plain = {key: value.constant() if key == "__slots__" else shadow_of(tx, value) for key, value in _pairs(early)}
    try:
        shadow = _create(meta.obj, name, plain_bases, plain, plain_keywords)
    except NameError as error:  # an `__init_subclass__` reads a variable of the frame
        raise Unsupported("class-definition", f"{name}: {error}") from None
    except (TypeError, ValueError) as error:
        if "__bases__" in str(error) or "layout" in str(error):
            raise Unsupported("class-definition", f"{name}: {error}") from None
        tx.raise_real(error)
    parts = (meta, Constant(name), TupleValue(list(bases)), early, keywords)
    made = MadeClass(shadow, (_create, parts), late)
    register(tx, shadow, made)
    for key, value in late:
        is_read = key == "__annotations__" and isinstance(value, DictValue)
        try:
            _set_attribute(shadow, key, shadow_dict(tx, value) if is_read else shadow_of(tx, value))  # type: ignore[arg-type]
        except (TypeError, ValueError, AttributeError) as error:
            # Such names as `__bases__` and `__name__` are the metaclass's.
            raise Unsupported("class-definition", f"{name}: {error}") from None
    register_generated(tx, shadow)
    tx.lookup_cache.clear()
    if isinstance(cell, CellValue):
        cell.store(tx, made)
    _tell_names(tx, made, entries)
    if is_traced:
        SuperValue(shadow, made).get_attr(tx, "__init_subclass__").call(tx, [], kwargs)
    return made


def metaclass_of(tx: TraceContext, meta: Value, bases: list[Value]) -> Value:
    """The most derived of the metaclass and those of the bases. Raises the program's TypeError where there is none."""
    winner = meta.constant()
    for base in bases:
        of_base = base.python_type()
        if is_subtype(of_base, winner):
            winner = of_base
        elif not is_subtype(winner, of_base):
            text = (
                "the metaclass of a derived class must be a (non-strict) subclass of the metaclasses of all its bases"
            )
            tx.raise_exception(TypeError, f"metaclass conflict: {text}")
    return tx.wrap_known(winner)


def _arguments(tx: TraceContext, meta: ClassValue, args: list[Value]) -> tuple[str, list[ClassValue], dict[str, Value]]:
    """Name, bases and namespace that `type.__new__` is given. Raises Unsupported for others than usual."""
    if len(args) != 3 or not args[0].is_constant() or isinstance(lookup(tx, meta.obj, "mro"), types.FunctionType):
        raise Unsupported("class-definition", f"{meta.describe()} with these arguments")
    bases = args[1].unpack(tx)
    found = args[2].as_dict(tx)
    if found is None or not all(isinstance(base, ClassValue) for base in bases):
        raise Unsupported("class-definition", f"bases or namespace of {args[0].constant()}")
    return args[0].constant(), bases, {key.constant(): value for key, value in found.items(tx)}  # type: ignore[return-value]


def _line_of(bases: tuple[type, ...]) -> tuple[type, ...]:
    return (*(cls for base in bases for cls in base.__mro__ if cls is not object), object)


def _pairs(entries: DictValue) -> list[tuple[str, Value]]:
    return [(key.constant(), value) for key, value in entries.entries.values()]


def _is_given_early(key: str, value: Value) -> bool:
    """Whether the class gets the attribute when it is made: a constant, which cannot refer to the class."""
    if isinstance(value, TupleValue):
        return value.source is None and all(_is_given_early("", item) for item in value.items)
    if key == "__slots__":
        return True
    return isinstance(value, ConcreteValue) and not isinstance(value, MadeClass)


def _tell_names(tx: TraceContext, made: MadeClass, entries: dict[str, Value]) -> None:
    """Call `__set_name__` of the attributes that have one."""
    for name, value in entries.items():
        if isinstance(value, MadeDescriptor):
            shadow = vars(made.obj)[name]
            if hasattr(shadow, "attrname"):
                value.name = name if value.name is None else value.name
                shadow.__set_name__(made.obj, name)
            continue
        if isinstance(value, (ConcreteValue, FunctionValue)):
            continue
        if lookup(tx, value.python_type(), "__set_name__") is not MISSING:
            call_special(tx, value, "__set_name__", [made, Constant(name)])


def _refuse_constants_told_their_names(tx: TraceContext, entries: dict[str, Value]) -> None:
    """Python would call `__set_name__` of a constant when it makes the shadow: code of the program would run in the trace."""
    for name, value in entries.items():
        if isinstance(value, ConstantObject) and lookup(tx, type(value.obj), "__set_name__") is not MISSING:
            raise Unsupported("class-definition", f"{name}: {value.describe()}, which has a __set_name__")


# ---- classes that a function of the standard library makes


def made_by(tx: TraceContext, function: Callable[..., Any], *values: Value) -> MadeClass:
    """The class that `function(*values)` gives: made now of shadows, and later of the values."""
    tx.mutations.begin_write()
    plain = [_plain(tx, value) for value in values]
    try:
        shadow = function(*plain)
    except (TypeError, ValueError, AttributeError) as error:
        tx.raise_real(error)
    except NameError as error:  # a function of the class reads a variable of the frame
        raise Unsupported("class-definition", str(error)) from None
    made = MadeClass(shadow, (function, values), [])
    register(tx, shadow, made)
    register_generated(tx, shadow)
    return made


def _plain(tx: TraceContext, value: Value) -> Any:
    """What Python works on in place of a value: dicts and lists with shadows of their items."""
    if isinstance(value, DictValue):
        return {key.constant(): _plain(tx, item) for key, item in value.items(tx)}
    if isinstance(value, (ListValue, TupleValue)) and value.source is None and is_one_of(value.cls, (list, tuple)):
        return value.cls(_plain(tx, item) for item in value.items)
    return shadow_of(tx, value)
