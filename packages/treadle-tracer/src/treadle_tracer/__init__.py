"""treadle-tracer: Python functions to FX graphs. Names are imported on first use, so that `treadle_tracer.bytecode` needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .__about__ import __version__

if TYPE_CHECKING:
    from .collector import paused
    from .compile import FrameCompiler, compile_handler, optimize
    from .errors import BackendError, InternalError, Unsupported
    from .marks import Mark, set_mark
    from .observer import Observer, SilentObserver
    from .options import TracerOptions
    from .output.entry import Payload
    from .output.profitability import profit_of
    from .room import is_out_of_room
    from .skips import Skip, SkipKind

_PLACES = {
    "BackendError": "errors",
    "FrameCompiler": "compile",
    "compile_handler": "compile",
    "optimize": "compile",
    "InternalError": "errors",
    "Unsupported": "errors",
    "Observer": "observer",
    "SilentObserver": "observer",
    "TracerOptions": "options",
    "Mark": "marks",
    "Payload": "output.entry",
    "Skip": "skips",
    "SkipKind": "skips",
    "is_out_of_room": "room",
    "paused": "collector",
    "profit_of": "output.profitability",
    "set_mark": "marks",
}

__all__ = [
    "BackendError",
    "FrameCompiler",
    "InternalError",
    "Mark",
    "Observer",
    "Payload",
    "SilentObserver",
    "Skip",
    "SkipKind",
    "TracerOptions",
    "Unsupported",
    "__version__",
    "compile_handler",
    "is_out_of_room",
    "optimize",
    "paused",
    "profit_of",
    "set_mark",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{place}", __name__), name)
