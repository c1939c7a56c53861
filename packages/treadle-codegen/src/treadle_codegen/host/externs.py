"""Which Python callable the host calls for an extern."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle_codegen.ir.loops import Extern
from treadle_shapes.torch import operator as operator_record


def callee_of(step: Extern, replacements: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The target's replacement, else torch's own binding, which parses arguments faster, else the operator itself."""
    return replacements.get(str(step.op)) or _binding(step) or step.op


def needs_schema_call(step: Extern, replacements: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether out arguments are passed by their schema names, as an OpOverload takes them, rather than as `out=`."""
    return str(step.op) in replacements or _binding(step) is None


def _binding(step: Extern) -> Callable[..., Any] | None:
    record = operator_record(step.op)
    return None if record is None else record.binding
