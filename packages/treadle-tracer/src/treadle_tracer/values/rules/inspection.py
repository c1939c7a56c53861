"""Rules of `inspect.signature` and of what `dataclasses` tells about a class."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import boolean
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.functions import BoundMethod, ClassValue, FunctionValue
from treadle_tracer.values.key_guards import SameKeys
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import TupleValue
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
    if function is None or kwargs or tx.class_writes or tx.mutations.is_mutated(args[0]):
        raise Unsupported("call", f"inspect.signature of {args[0].describe()}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        tx.raise_real(error)
    value = args[0].function if isinstance(args[0], BoundMethod) else args[0]
    source = ConstSource(function) if value.source is None else value.source
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
        return None
    return value.constant() if value.is_constant() else None


def _fields(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].constant() if isinstance(args[0], ClassValue) else args[0].python_type()
    known = lookup(tx, cls, "__dataclass_fields__")
    try:
        fields = dataclasses.fields(cls)
    except TypeError as error:
        tx.raise_real(error)
    tx.guards.add(ConstSource(known), "call", SameKeys(known), f"{cls.__name__} has the same fields")
    return TupleValue([tx.wrap(field, ConstSource(field)) for field in fields])


def _is_dataclass(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].constant() if isinstance(args[0], ClassValue) else args[0].python_type()
    return boolean(lookup(tx, cls, "__dataclass_fields__") is not MISSING)


RULES = (
    Rule(inspect.signature, _signature, Effect.NONE),
    Rule(dataclasses.fields, _fields, Effect.NONE),
    Rule(dataclasses.is_dataclass, _is_dataclass, Effect.NONE),
)
