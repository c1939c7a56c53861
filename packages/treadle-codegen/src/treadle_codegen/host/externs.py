"""Which Python callable the host calls for an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle_shapes.torch import operator as operator_record


def callee_of(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The target's replacement, else torch's own binding, which parses arguments faster, else the operator itself."""
    return replacements.get(str(op)) or _binding(op) or op


def needs_schema_call(op: Any, replacements: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether out arguments are passed by their schema names, as an OpOverload takes them, rather than as `out=`."""
    return str(op) in replacements or _binding(op) is None


def _binding(op: Any) -> Callable[..., Any] | None:
    record = operator_record(op)
    return None if record is None else record.binding
