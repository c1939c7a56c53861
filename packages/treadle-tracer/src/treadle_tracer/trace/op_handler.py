"""What a handler of an opcode is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported

if TYPE_CHECKING:
    from treadle_tracer.bytecode import Instruction
    from treadle_tracer.trace.frame import Frame

OpHandler = Callable[["Frame", "Instruction"], Any]
"""Carries out one instruction on a frame. A true result leaves the frame."""


def unsupported(what: str) -> OpHandler:
    """The handler of opcodes that break the graph."""

    def handler(frame: Frame, instruction: Instruction) -> None:
        raise Unsupported("opcode", f"{instruction.opname}: {what}")

    return handler
