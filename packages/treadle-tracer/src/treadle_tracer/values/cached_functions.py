"""Functions under `functools.lru_cache`.

Of constants they are asked while tracing, and again by a guard, so the cache is the one that the program has. A function that the cache
has no answer of runs while the call is traced, but only where that is no other moment to it than in eager: where nothing has been printed,
written or drawn before. Of an object that the trace has made, which a cache without an answer would keep, it runs in Python. Of numbers
that are not known yet functions are evaluated in place where that cannot be told from finding the answer in the cache: the function only
computes from its arguments, and nobody changes what it gives. Otherwise the numbers become constants, and each of the first few has a
graph; behind them, the graph breaks at the call.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import PathEnds, Unsupported
from treadle_tracer.left_below import leave_below
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import ConcreteValue, Constant, settled
from treadle_tracer.values.cached_answers import CachedAnswer, is_answered
from treadle_tracer.values.call_effects import only_computes
from treadle_tracer.values.constants import is_constant_object, is_trusted_name
from treadle_tracer.values.graph_functions import goes_into_graph
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.outside_decisions import place_of_decision
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.twins import Twins
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def call_cached(tx: TraceContext, cached: ConcreteValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of `cached`, whose object is a function under `functools.lru_cache`. Where the graph breaks at it, Python runs all below."""
    try:
        return _call(tx, cached, args, kwargs)
    except Unsupported:
        leave_below(cached.obj.__wrapped__)
        raise


def _call(tx: TraceContext, cached: ConcreteValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if tx.class_writes:
        raise Unsupported("class-store", f"{cached.describe()}, whose results are cached, after a class was changed")
    of_numbers = any(map(_has_symbols, (*args, *kwargs.values())))
    if of_numbers and _only_computes(cached.obj.__wrapped__, set()):
        found = _evaluated(tx, cached.obj.__wrapped__, args, kwargs)
        if found is not None:
            return found
    function, place = ConstSource(cached.obj), place_of_decision(tx)
    if tx.symbols.keeps_differing(place) and not tx.symbols.wants_one_graph:
        raise Unsupported("builtin-call", f"{cached.describe()}, whose results are cached and keep differing here")
    twins = Twins(tx, "builtin-call", f"{cached.describe()}, whose results are cached, of ")
    plain = [twins.of(arg) for arg in args]
    named = {name: twins.of(arg) for name, arg in kwargs.items()}
    before = sum(known.call[0] == place for known in tx.guards.callables_at(function) if type(known) is CachedAnswer)
    answer = CachedAnswer(plain, named, (place, before), of_numbers or twins.has_numbers)
    if not is_answered(cached.obj, answer.args, answer.kwargs):
        if twins.has_made:
            raise Unsupported("not-cached", cached.describe())
        tx.mutations.begin_write()
        reason = "its cache is full" if _is_full(cached.obj) else why_not_run_now(tx)
        if reason is not None:
            raise Unsupported("builtin-call", f"{cached.describe()}, which is not cached yet, while {reason}")
    try:
        answer.result = cached.obj(*answer.args, **answer.kwargs)
    except Exception as error:
        raise Unsupported("builtin-call", f"{cached.describe()}, which has raised {error!r}") from None
    is_constant = is_constant_object(answer.result)
    what = repr(answer.result) if is_constant else f"the same {type(answer.result).__name__}"
    # A check of two sources comes behind the checks of one.
    tx.guards.add(function, "call_many", (answer, (function,)), f"{cached.describe()} gives {what}")
    if is_constant:
        return tx.from_constant(answer.result)
    return tx.wrap(answer.result, ConstSource(answer.result, is_made=True))


def _is_full(function: Any) -> bool:
    """Whether the next new result is not kept, or drops another: the trace may rely on it, and the function would run again for it."""
    info = function.cache_info()
    return info.maxsize is not None and info.currsize >= info.maxsize


def why_not_run_now(tx: TraceContext) -> str | None:
    """What the program has done that the trace has not: a function of the program that runs now comes too early."""
    writes = tx.mutations
    if writes.outputs:
        return "output waits"
    if any(True for _ in writes.global_stores()) or any(True for _ in writes.cell_stores()):
        return "writes to variables wait"
    changed = (*writes.containers(), *(owner for owner, _, _ in writes.attr_stores()))
    if any(value.source is not None for value in changed):
        return "writes to objects wait"
    if any(node.op.startswith("call_") and not only_computes(node) for node in tx.graph.nodes):
        return "operators wait that write to tensors or draw random numbers"
    return None


# ---- numbers that are not known yet


def _has_symbols(arg: Value) -> bool:
    arg = settled(arg)
    if isinstance(arg, TupleValue) and is_one_of(arg.cls, (tuple, torch.Size)):
        return any(map(_has_symbols, arg.items))
    return isinstance(arg, SymbolicValue)


def _only_computes(function: Any, seen: set[Any]) -> bool:
    """Whether a function reads nothing but its arguments, other such functions, classes, and trusted modules, as far as names tell."""
    if not isinstance(function, types.FunctionType) or function.__closure__ or function.__kwdefaults__:
        return False
    if function in seen:
        return True
    seen.add(function)
    return all(_is_fixed(function.__globals__[name], seen) for name in _names(function.__code__, function.__globals__))


def _names(code: types.CodeType, scope: dict[str, Any]) -> list[str]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [name for name in code.co_names if name in scope] + [name for part in inner for name in _names(part, scope)]


def _is_fixed(obj: Any, seen: set[Any]) -> bool:
    if isinstance(obj, types.ModuleType):
        return is_trusted_name(obj.__name__)
    if isinstance(obj, types.FunctionType):
        return is_trusted_name(obj.__module__) or _only_computes(obj, seen)
    return isinstance(obj, (type, types.BuiltinFunctionType))


def _evaluated(tx: TraceContext, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What the function computes of these arguments; None where it writes, calls what a graph holds, or gives anything but numbers."""
    if goes_into_graph(function):
        return None
    before = set(tx.graph.nodes)
    try:
        with tx.mutations.freezing():
            found = tx.inline(tx.wrap_known(function), args, kwargs)
    except (PathEnds, Unsupported):
        return None
    made = (node for node in tx.graph.nodes if node not in before)  # those of inputs stand in front
    if any(isinstance(node.meta.get("example_value"), torch.Tensor) for node in made):
        return None
    try:
        return _shared(found)
    except _NotShared:
        return None


class _NotShared(Exception):
    """The function gives something that would show that it is not the object in the cache."""


def _shared(value: Value) -> Value:
    """A value as every caller of the function gets it. Raises _NotShared."""
    value = settled(value)
    if value.source is not None or isinstance(value, (Constant, ConcreteValue, SymbolicValue)):
        return value
    if isinstance(value, TupleValue) and value.cls is tuple:
        return _CachedTuple([_shared(item) for item in value.items])
    if isinstance(value, ListValue) and value.cls is list:
        return _CachedList([_shared(item) for item in value.items])
    if isinstance(value, DictValue) and value.cls is dict:
        return _CachedDict({key: (name, _shared(item)) for key, (name, item) in value.entries.items()})
    raise _NotShared


def _refuse(value: Value, *args: Any) -> None:
    raise Unsupported(
        "builtin-call", f"{value.describe()} of a function whose results are cached is changed, or leaves the trace"
    )


class _CachedList(ListValue):
    """A list that stands in the cache of a function. It is changed for every caller, and is one object for all of them."""

    __slots__ = ()
    is_from_cache = True
    changed = reconstruct = _refuse


class _CachedTuple(TupleValue):
    """A tuple that stands in the cache of a function."""

    __slots__ = ()
    is_from_cache = True
    reconstruct = _refuse


class _CachedDict(DictValue):
    """A dict that stands in the cache of a function."""

    __slots__ = ()
    is_from_cache = True
    changed = reconstruct = _refuse
