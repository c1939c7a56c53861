"""The table from opcode name to handler. A handler takes the frame and the instruction; a true result leaves the frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame

    OpHandler = Callable[["Frame", "Instruction"], Any]

HANDLERS: dict[str, Any] = {}
"""Handler by opcode name, of all supported CPython versions at once."""


def op(*names: str) -> Callable[[OpHandler], OpHandler]:
    """Register a handler for these opcodes."""

    def register(handler: OpHandler) -> OpHandler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def unsupported(names: str, what: str) -> None:
    """Declare opcodes that break the graph."""

    def handler(frame: Frame, instruction: Instruction) -> None:
        raise Unsupported("opcode", f"{instruction.opname}: {what}")

    for name in names.split():
        HANDLERS[name] = handler
