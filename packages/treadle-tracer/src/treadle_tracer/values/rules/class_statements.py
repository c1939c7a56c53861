"""Rules of what makes classes: class statements, and functions of the standard library that make classes or change them."""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import typing
from typing import TYPE_CHECKING, Any

from treadle_tracer.bytecode import read
from treadle_tracer.class_facts import module_of, mro_of, namespace_of, stands_in_its_module
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.cells import CellValue
from treadle_tracer.values.class_lookup import lookup_with_owner
from treadle_tracer.values.functions import ClassValue, FunctionValue
from treadle_tracer.values.generic_alias import GenericAlias
from treadle_tracer.values.made_classes import MadeClass, made_by, metaclass_of
from treadle_tracer.values.mappings import DictValue, dict_of
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.shadows import Held, MadeDescriptor
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


# ---- class statements (Python/bltinmodule.c, builtin___build_class__)


def _build_class(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    body, name, *given = args
    bases = _resolved_bases(tx, given)
    kwargs = dict(kwargs)
    meta = kwargs.pop("metaclass", None) or (tx.wrap_known(bases[0].python_type() if bases else type))
    if not isinstance(meta, ClassValue):
        raise Unsupported("class-definition", f"metaclass {meta.describe()}")
    meta = metaclass_of(tx, meta, bases)
    assert isinstance(meta, ClassValue) and isinstance(body, FunctionValue)
    if issubclass(meta.obj, _MADE_BY_PYTHON):
        return _build_by_python(tx, meta, body, name, bases, kwargs)
    namespace = _prepared(tx, meta, name, bases, kwargs)
    cell = tx.run_body(body, namespace)
    if len(bases) != len(given) or any(base is not old for base, old in zip(bases, given, strict=True)):
        namespace.set_item(tx, Constant("__orig_bases__"), TupleValue(given))
    made = tx.construct(meta, [name, TupleValue(bases), namespace], kwargs)
    if isinstance(cell, CellValue) and isinstance(made, ClassValue) and cell.load(tx) is not made:
        raise Unsupported("class-definition", f"{name.describe()}, whose __class__ is another class")
    return made


def _resolved_bases(tx: TraceContext, given: list[Value]) -> list[Value]:
    """The bases with `__mro_entries__` carried out: `Generic[T]` stands for Generic."""
    bases: list[Value] = []
    for base in given:
        if isinstance(base, ClassValue):
            bases.append(base)
        elif isinstance(base, (GenericAlias, FunctionValue)) and hasattr(getattr(base, "obj", None), "__mro_entries__"):
            plain = tuple(item.constant() for item in given)
            try:
                bases += [tx.wrap_known(entry) for entry in base.obj.__mro_entries__(plain)]
            except TypeError as error:
                tx.raise_real(error)
        else:
            raise Unsupported("class-definition", f"base {base.describe()}")
    return bases


def _prepared(tx: TraceContext, meta: ClassValue, name: Value, bases: list[Value], kwargs: Kwargs) -> Value:
    """The namespace that `meta.__prepare__` gives."""
    if lookup_with_owner(tx, meta.obj, "__prepare__")[1] is type:
        return DictValue()
    return meta.get_attr(tx, "__prepare__").call(tx, [name, TupleValue(bases)], kwargs)


_MADE_BY_PYTHON: Any = (enum.EnumMeta, typing.NamedTupleMeta, type(typing.TypedDict("_", {})))  # type: ignore[attr-defined]
"""Metaclasses whose own code makes the class, of the real namespace; methods of the program that they would call are not there."""
_CALLED_BY_METACLASS = (
    "__new__",
    "__init__",
    "_generate_next_value_",
    "_missing_",
    "__set_name__",
    "__init_subclass__",
)


def _build_by_python(
    tx: TraceContext, meta: ClassValue, body: FunctionValue, name: Value, bases: list[Value], kwargs: Kwargs
) -> Value:
    instructions = read(body.code).instructions
    stored = [i.argval for i in instructions if i.opname == "STORE_NAME"]
    if len(set(stored)) < len(stored) or any(i.opname == "JUMP_BACKWARD" for i in instructions):
        raise Unsupported("class-definition", f"{name.constant()}, whose body may store a name twice")
    of_program = [
        namespace_of(cls)
        for base in bases
        for cls in mro_of(base.constant())
        if not (module_of(cls) in _PYTHONS_OWN and stands_in_its_module(cls))
    ]
    if any(special in scope for special in _CALLED_BY_METACLASS for scope in (stored, *of_program)):
        raise Unsupported("class-definition", f"{name.constant()}, whose methods its metaclass calls")
    namespace = DictValue()
    cell = tx.run_body(body, namespace)
    entries = {key.constant(): value for key, value in namespace.items(tx) if key.constant() != "__classcell__"}
    for key, value in entries.items():
        if key != "__annotations__" and not (
            value.is_constant()
            or isinstance(value, (FunctionValue, MadeDescriptor))
            or value.python_type() is enum.auto
        ):
            raise Unsupported("class-definition", f"{name.constant()}.{key}: {value.describe()}")
    parts = (meta, name, TupleValue(bases), dict_of(entries), dict_of(kwargs))
    made = made_by(tx, _make_by_metaclass, *parts)
    if isinstance(cell, CellValue):
        cell.store(tx, made)
    return made


_PYTHONS_OWN = ("builtins", "enum", "typing")


def _make_by_metaclass(meta: Any, name: str, bases: tuple[type, ...], items: dict[str, Any], keywords: Any) -> type:
    namespace = meta.__prepare__(name, bases, **keywords)
    for key, value in items.items():
        namespace[key] = value
    return meta(name, bases, namespace, **keywords)


# ---- functions that work on a class


def _abc_init(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    (cls,) = args
    if not isinstance(cls, MadeClass):
        raise Unsupported("class-definition", f"_abc_init of {cls.describe()}")
    cls.apply(tx, abc._abc_init)  # type: ignore[attr-defined]
    return NONE


_PROCESSING = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only", "slots", "weakref_slot")


def _process_dataclass(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """What `@dataclass` does with a class."""
    cls, *options = args
    if not isinstance(cls, MadeClass):
        raise Unsupported("class-store", f"dataclass of {cls.describe()}")
    options = [*options, *(kwargs[name] for name in _PROCESSING[len(options) :] if name in kwargs)]
    if options[_PROCESSING.index("slots")].truth(tx):
        raise Unsupported("class-definition", f"dataclass(slots=True) of {cls.describe()}")
    cls.apply(tx, dataclasses._process_class, *options, on_shadow=_process_shadow)  # type: ignore[attr-defined]
    return cls


def _process_shadow(cls: type, *options: Any) -> None:
    """The same without a docstring made of the defaults, which may be shadows."""
    has_docstring = bool(cls.__doc__)
    if not has_docstring:
        cls.__doc__ = "unknown"
    dataclasses._process_class(cls, *options)  # type: ignore[attr-defined]
    if not has_docstring:
        cls.__doc__ = Held()  # type: ignore[assignment]


def _named_tuple(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`collections.namedtuple`; its class says that it is of the module that calls."""
    given = dict(kwargs)
    if "module" not in given or given["module"].constant() is None:
        given["module"] = Constant(tx.frames[-1].module_name)
    if not all(value.is_constant() or _is_plain(value) for value in (*args, *given.values())):
        raise Unsupported("class-definition", "namedtuple of values that are not known")
    plain = [Constant(value.constant()) if isinstance(value, Constant) else value for value in args]
    return made_by(tx, _make_named_tuple, TupleValue(plain), dict_of(given))


def _is_plain(value: Value) -> bool:
    try:
        value.constant()
    except Exception:
        return False
    return True


def _make_named_tuple(args: tuple[Any, ...], kwargs: dict[str, Any]) -> type:
    return collections.namedtuple(*args, **kwargs)  # type: ignore[call-overload]


RULES = (
    Rule(builtins.__build_class__, _build_class, Effect.WRITES_STATE),
    Rule(abc._abc_init, _abc_init, Effect.WRITES_ARGUMENTS),  # type: ignore[attr-defined]
    Rule(dataclasses._process_class, _process_dataclass, Effect.WRITES_ARGUMENTS),  # type: ignore[attr-defined]
    Rule(collections.namedtuple, _named_tuple),
)
