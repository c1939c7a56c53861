"""Functions of the standard library written in C that have a twin in Python: the twin is traced.

The standard library uses the twins where the C module is missing. They do the same with the objects that they are given, step by step.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import ListValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


@functools.cache
def _without_c(module: str, c_module: str) -> ModuleType:
    """A second copy of a module of the standard library, made as if its C module were missing."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    present = sys.modules.get(c_module)
    sys.modules[c_module] = None  # type: ignore[assignment]
    try:
        spec.loader.exec_module(made)
    finally:
        if present is None:
            del sys.modules[c_module]
        else:
            sys.modules[c_module] = present
    return made


def _twin(module: str, c_module: str, name: str) -> Apply:
    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        why_not = _why_not_heap(tx, name, args) if module == "heapq" else None
        if why_not is not None:
            raise Unsupported("builtin-call", f"heapq.{name} of {why_not}")
        return tx.wrap_known(getattr(_without_c(module, c_module), name)).call(tx, args, kwargs)

    return apply


def _why_not_heap(tx: TraceContext, name: str, args: Args) -> str | None:
    """Why C and Python may raise different exceptions."""
    (heap, *_) = args
    if not isinstance(heap, ListValue) or heap.cls is not list:
        return f"{heap.describe()}, which is no plain list"
    return "an empty list" if name in ("heappop", "heapreplace") and not heap.truth(tx) else None


def _rules(module: Any, c_module: str, names: str) -> list[Rule]:
    return [
        Rule(getattr(module, name), _twin(module.__name__, c_module, name), Effect.WRITES_ARGUMENTS)
        for name in names.split()
    ]


RULES = (
    *_rules(heapq, "_heapq", "heappush heappop heapify heapreplace heappushpop"),
    *_rules(bisect, "_bisect", "bisect_left bisect_right insort_left insort_right"),
    *_rules(functools, "_functools", "cmp_to_key"),
)
