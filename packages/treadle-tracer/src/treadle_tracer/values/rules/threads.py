"""`threading.get_ident` and `os.getpid`: numbers that are the same in all calls of most programs. And `contextvars.copy_context`.

A guard asks for the numbers again in every call. Where a call comes from another thread the graph breaks in front of the question, instead
of being compiled once for each thread.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle_tracer.computed_source import ComputedSource
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.context_variables import copy_context
from treadle_tracer.values.rules.rule import Args, Effect, Kwargs, Rule
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


def _identity(function: Callable[[], int]) -> Rule:
    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs:
            raise Unsupported("call", f"{function.__name__}() with arguments")
        source = ComputedSource(function, ())
        if source in tx.symbols.dynamic:
            raise Unsupported("builtin-call", f"{function.__name__}, which has differed between calls")
        return tx.wrap(function(), source)

    return Rule(function, apply, Effect.READS_STATE)


def _copy_context(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        raise Unsupported("raises", "copy_context() with arguments")
    return copy_context(tx)


RULES = (
    *map(_identity, (threading.get_ident, threading.get_native_id, os.getpid)),
    Rule(contextvars.copy_context, _copy_context, Effect.READS_STATE),
)
