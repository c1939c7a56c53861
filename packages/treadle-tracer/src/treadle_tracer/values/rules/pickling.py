"""The rule of `pickle.dumps`, of built-in constants and containers of them (keys of caches, as in linear_operator)."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.rules.rule import Args, Kwargs, Rule
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def _dumps(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or len(args) != 1:
        raise Unsupported("builtin-call", "pickle.dumps with options")
    return tx.from_constant(pickle.dumps(_plain(tx, args[0], set())))


def _plain(tx: TraceContext, value: Value, met: set[Any]) -> Any:
    """The object that a value stands for. Raises Unsupported for others than built-in ones.

    met: what has been met that pickle refers back to when it meets it again. Whether equal ones are one object is not known.
    """
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, Constant) and type(value.obj) in (int, float, bool, type(None)):
        return value.obj
    if isinstance(value, Constant) and type(value.obj) in (str, bytes):
        return _first_time(value.obj, value, met)
    if isinstance(value, DictValue) and value.python_type() is dict:
        _first_time(id(value), value, met)
        return {_plain(tx, key, met): _plain(tx, item, met) for key, item in value.items(tx)}
    if isinstance(value, ListValue) and value.python_type() is list:
        _first_time(id(value), value, met)
        return [_plain(tx, item, met) for item in value.unpack(tx)]
    if isinstance(value, TupleValue) and value.python_type() is tuple:
        return _first_time(tuple(_plain(tx, item, met) for item in value.unpack(tx)), value, met)
    raise Unsupported("builtin-call", f"pickle.dumps of {value.describe()}")


def _first_time(obj: Any, value: Value, met: set[Any]) -> Any:
    key = obj if isinstance(obj, (str, bytes, int)) else ("tuple", repr(obj))
    if key in met and obj != ():
        raise Unsupported("builtin-call", f"pickle.dumps of {value.describe()}, twice")
    met.add(key)
    return obj


RULES = (Rule(pickle.dumps, _dumps),)
