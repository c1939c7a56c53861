"""Rules of `inspect.signature`, of `dir`, and of what `dataclasses` tells about a class."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import has_instance_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import LazyValue, boolean
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.functions import BoundMethod, ClassValue, FunctionValue
from treadle_tracer.values.key_guards import SameKeys, guard_keys_of
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class SameSignature:
    """Guard callable: `inspect.signature` tells of a callable what it told before, with the same objects as defaults and annotations."""

    __slots__ = ("parts",)

    def __init__(self, signature: inspect.Signature):
        self.parts = SameKeys(_parts(signature))

    def __call__(self, function: Any) -> bool:
        try:
            return self.parts(_parts(inspect.signature(function)))
        except (TypeError, ValueError):
            return False


def _parts(signature: inspect.Signature) -> list[Any]:
    parameters = signature.parameters.values()
    return [
        signature.return_annotation,
        *(part for p in parameters for part in (p.name, int(p.kind), p.default, p.annotation)),
    ]


def _signature(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    function = _plain_callable(args[0])
    described = args[0].function if isinstance(args[0], BoundMethod) else args[0]
    has_attributes = _is_made(described) and bool(
        tx.mutations.attrs_of(described)
    )  # which may say what the signature is
    if function is None or kwargs or tx.class_writes or tx.mutations.is_mutated(args[0]) or has_attributes:
        raise Unsupported("call", f"inspect.signature of {args[0].describe()}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        tx.raise_real(error)
    if _is_made(described):
        return tx.from_constant(signature)
    source = ConstSource(function) if described.source is None else described.source
    is_bound = isinstance(args[0], BoundMethod)
    test = SameSignature(inspect.signature(function.__func__) if is_bound else signature)
    tx.guards.add(source, "call", test, f"inspect.signature({source.text}) is the same")
    return tx.from_constant(signature)


def _plain_callable(value: Value) -> Any:
    """A real callable with the same signature as a traced one, or None."""
    if isinstance(value, BoundMethod):
        function = _plain_callable(value.function)
        return None if function is None else types.MethodType(function, object())
    if isinstance(value, FunctionValue) and value.obj is None:
        return _like_function(value)
    return value.constant() if value.is_constant() else None


def _like_function(value: FunctionValue) -> Any:
    """A function with the parameters of one that the trace has made; None where a default or an annotation is no constant."""
    parts = [*value.defaults, *value.kwdefaults.values(), *value.annotations.values()]
    if not all(part.is_constant() for part in parts):
        return None
    closure = tuple(types.CellType() for _ in value.closure) or None
    defaults = tuple(part.constant() for part in value.defaults) or None
    made = types.FunctionType(value.code, value.globals, value.name, defaults, closure)
    made.__kwdefaults__ = {name: part.constant() for name, part in value.kwdefaults.items()} or None
    made.__annotations__ = {name: part.constant() for name, part in value.annotations.items()}
    return made


def _is_made(value: Value) -> bool:
    return isinstance(value, FunctionValue) and value.obj is None


def _fields(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].constant() if isinstance(args[0], ClassValue) else args[0].python_type()
    known = lookup(tx, cls, "__dataclass_fields__")
    try:
        fields = dataclasses.fields(cls)
    except TypeError as error:
        tx.raise_real(error)
    guard_keys_of(tx, known, ConstSource(known))
    return TupleValue([tx.wrap(field, ConstSource(field)) for field in fields])


def _is_dataclass(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].constant() if isinstance(args[0], ClassValue) else args[0].python_type()
    return boolean(lookup(tx, cls, "__dataclass_fields__") is not MISSING)


# ---- dir


class _SameNames(GuardCallable):
    """`dir(cls)` of a class is as before."""

    __slots__ = ()

    def __call__(self, cls: Any) -> bool:
        return tuple(sorted(type.__dir__(cls))) == self.question


def _names_of_class(tx: TraceContext, cls: Any) -> list[str]:
    if tx.class_writes or lookup(tx, type(cls), "__dir__") is not type.__dir__:
        raise Unsupported("call", f"dir() of {cls!r}")
    names = sorted(type.__dir__(cls))
    tx.guards.add(ConstSource(cls), "call", _SameNames(tuple(names)), f"dir({cls.__qualname__}) is the same")
    return names


def _dir(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    """`dir(obj)` of classes, and of instances that leave it to `object`."""
    value = args[0].force(tx) if args and isinstance(args[0], LazyValue) else args[0] if args else None
    if isinstance(value, ClassValue):
        return tx.from_constant(_names_of_class(tx, value.obj))
    if not isinstance(value, ObjectValue):
        raise Unsupported("call", f"dir({'' if value is None else value.describe()})")
    method = lookup(tx, value.cls, "__dir__")
    if isinstance(method, types.FunctionType):
        found = ListValue(tx.inline(tx.wrap_known(method), [value], {}).unpack(tx))
        found.builtin_method(tx, "sort", [], {})
        return found
    asked = [lookup(tx, value.cls, name) for name in ("__class__", "__getattribute__", "__getattr__")]
    if (
        method is not object.__dir__
        or not has_instance_dict(value.cls)
        or any(isinstance(raw, types.FunctionType) for raw in asked)
    ):
        raise Unsupported("call", f"dir({value.describe()})")
    own = [name.constant() for name in value.get_attr(tx, "__dict__").unpack(tx)]
    return tx.from_constant(sorted({*_names_of_class(tx, value.cls), *own}))


RULES = (
    Rule(dir, _dir),
    Rule(inspect.signature, _signature, Effect.NONE),
    Rule(dataclasses.fields, _fields, Effect.NONE),
    Rule(dataclasses.is_dataclass, _is_dataclass, Effect.NONE),
)
