"""The events of a compile: graphs, breaks, recompiles, skips, entries, and the time of each phase."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch.fx

    from .errors import Unsupported
    from .skips import Skip


class Observer(Protocol):
    """Receives the events. The handler calls it while it holds its lock; it must not raise and must not run traced code."""

    def on_graph(self, gm: torch.fx.GraphModule) -> None:
        """A graph with at least one call goes to the backend."""
        ...

    def on_break(self, reason: Unsupported) -> None:
        """A graph break: the frame goes on in a continuation, or Python runs all of it."""
        ...

    def on_recompile(self, code: CodeType, reason: str) -> None:
        """No entry of a code object serves a call; `reason` says what the nearest entry expects."""
        ...

    def on_entry(self, entry: Any) -> None:
        """A `treadle_frame.Entry` is finished; its `payload` is an `output.entry.Payload`."""
        ...

    def on_skip(self, code: CodeType, reason: Skip) -> None:
        """Python runs this code object from now on."""
        ...

    def on_wait(self, code: CodeType, guard: str) -> None:
        """Python runs this call, because `guard` does not hold behind it. Another call like it is compiled."""
        ...

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Entered around "trace", "backend" and "codegen" (of replacement code)."""
        ...


class SilentObserver:
    """Ignores all events."""

    def on_graph(self, gm: torch.fx.GraphModule) -> None:
        """Nothing."""

    def on_break(self, reason: Unsupported) -> None:
        """Nothing."""

    def on_recompile(self, code: CodeType, reason: str) -> None:
        """Nothing."""

    def on_entry(self, entry: Any) -> None:
        """Nothing."""

    def on_skip(self, code: CodeType, reason: Skip) -> None:
        """Nothing."""

    def on_wait(self, code: CodeType, guard: str) -> None:
        """Nothing."""

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Nothing."""
        return contextlib.nullcontext()
