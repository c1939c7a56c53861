"""Which Python callable the host calls for an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle_shapes.torch import binding_of
from treadle_shapes.torch import operator as operator_record


def callee_of(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The target's replacement, else torch's own binding, which parses arguments faster, else the operator itself."""
    return replacements.get(str(op)) or binding_of(op) or op


def needs_schema_call(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether out arguments are passed by their schema names, as an OpOverload takes them, rather than as `out=`."""
    record = operator_record(op)
    return str(op) in replacements or record is None or record.binding is None
