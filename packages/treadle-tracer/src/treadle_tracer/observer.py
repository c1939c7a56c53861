"""What a compile tells the outside: graphs, breaks, recompiles, entries, and how long each phase took."""

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
    """Called by the handler while it holds its lock; must not raise and must not run traced code."""

    def on_graph(self, gm: torch.fx.GraphModule) -> None:
        """A graph with at least one call goes to the backend."""
        ...

    def on_break(self, reason: Unsupported) -> None:
        """A graph break: the frame goes on in a continuation, or is left to Python altogether."""
        ...

    def on_recompile(self, code: CodeType, reason: str) -> None:
        """A code object with entries missed; `reason` says per entry which guard failed."""
        ...

    def on_entry(self, entry: Any) -> None:
        """A `treadle_frame.Entry` is finished; its `payload` is an `output.entry.Payload`."""
        ...

    def on_skip(self, code: CodeType, reason: Skip) -> None:
        """A code object is left to Python from now on."""
        ...

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Entered around "trace", "backend" and "codegen" (of replacement code)."""
        ...


class SilentObserver:
    """Takes no notice."""

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

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Nothing."""
        return contextlib.nullcontext()
