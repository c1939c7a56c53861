"""What the tracer asks of its frames, and of the paths that it follows."""

from __future__ import annotations

import types
from typing import Any, Protocol

from treadle_tracer.values.value import FrameView


class TracedFrame(FrameView, Protocol):
    """What the tracer asks of its frames: see `trace.frame`."""

    began: int
    function_code: types.CodeType

    def position(self) -> tuple[str, int, str]:
        """(file, line, function) of the instruction being evaluated."""
        ...

    def is_protected(self) -> bool:
        """Whether the program may catch an exception at the present instruction before it leaves the frame."""
        ...


class Speculates(Protocol):
    """The paths being followed that may turn out not to be taken: see `trace.speculation`."""

    def decide(self, condition: Any) -> bool:
        """The truth of a condition on the present path."""
        ...

    def known(self, condition: Any) -> bool | None:
        """The same, None where it would need a guard."""
        ...

    def run(self, frame: Any) -> None:
        """Evaluate the frame of a call to its return."""
        ...
