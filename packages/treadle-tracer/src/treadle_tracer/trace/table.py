"""The table of opcodes: one handler for each opcode of all supported CPython versions."""

from __future__ import annotations

from treadle_tracer.tables import disjoint
from treadle_tracer.trace import ops_call, ops_data, ops_flow, ops_names
from treadle_tracer.trace.op_handler import OpHandler

HANDLERS: dict[str, OpHandler] = disjoint(ops_data.HANDLERS, ops_flow.HANDLERS, ops_call.HANDLERS, ops_names.HANDLERS)
"""Handler by opcode name."""
