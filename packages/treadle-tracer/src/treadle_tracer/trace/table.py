"""The table of opcodes: one handler for each opcode of all supported CPython versions."""

from __future__ import annotations

from treadle_tracer.tables import disjoint
from treadle_tracer.trace import ops_async, ops_call, ops_data, ops_flow, ops_names
from treadle_tracer.trace.op_handler import OpHandler

HANDLERS: dict[str, OpHandler] = disjoint(
    *[ops.HANDLERS for ops in (ops_data, ops_flow, ops_call, ops_names, ops_async)]
)
"""Handler by opcode name."""
