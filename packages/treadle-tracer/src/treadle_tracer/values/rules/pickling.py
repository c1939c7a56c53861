"""The rules of `pickle.dumps` and `pickle.loads`, of built-in constants and containers of them (keys of caches, as in linear_operator)."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
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


def _loads(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or len(args) != 1 or args[0].python_type() is not bytes or not args[0].is_constant():
        raise Unsupported("builtin-call", "pickle.loads with options, or of others than constant bytes")
    try:
        loaded = _PlainUnpickler(io.BytesIO(args[0].constant())).load()
    except Unsupported:
        raise
    except Exception as error:  # whatever malformed data lead to
        raise Unsupported("raises", f"pickle.loads: {type(error).__name__}: {error}") from None
    _check_loaded(loaded, set())
    return tx.from_constant(loaded)


class _PlainUnpickler(pickle.Unpickler):
    """Makes built-in constants and containers. Everything else takes a class or function, which the program's data name."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise Unsupported("builtin-call", f"pickle.loads of a {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> Any:
        raise Unsupported("builtin-call", "pickle.loads of a persistent id")


def _check_loaded(obj: Any, met: set[int]) -> None:
    """Raise Unsupported for what the trace would not rebuild as it is: other kinds of objects, and one object in two places."""
    if is_one_of(type(obj), (int, float, bool, type(None), str, bytes)):
        return
    if id(obj) in met or not is_one_of(type(obj), (list, tuple, dict)):
        raise Unsupported("builtin-call", f"pickle.loads of a {type(obj).__name__}, or of one object twice")
    if obj != ():
        met.add(id(obj))
    for item in [*obj.keys(), *obj.values()] if type(obj) is dict else obj:
        _check_loaded(item, met)


RULES = (Rule(pickle.dumps, _dumps), Rule(pickle.loads, _loads))
