"""treadle-tracer: Python functions to FX graphs. Names are imported on first use, so that `treadle_tracer.bytecode` needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .__about__ import __version__

if TYPE_CHECKING:
    from .compile import FrameCompiler, compile_handler, optimize
    from .errors import BackendError, ExportError, InternalError, RecompileRefused, Unsupported
    from .exported_graph import export
    from .marks import Mark, set_mark
    from .observer import Observer, SilentObserver
    from .options import TracerOptions
    from .output.entry import Payload
    from .output.profitability import profit_of
    from .room import is_out_of_room
    from .skips import Skip, SkipKind
    from .stance import set_stance
    from .values.rules.nested_compilers import trace_functions_compiled_by
    from .values.rules.registered import allow_in_graph, assume_constant_result, substitute_in_graph

_PLACES = {
    "BackendError": "errors",
    "FrameCompiler": "compile",
    "compile_handler": "compile",
    "optimize": "compile",
    "InternalError": "errors",
    "Unsupported": "errors",
    "ExportError": "errors",
    "RecompileRefused": "errors",
    "export": "exported_graph",
    "set_stance": "stance",
    "allow_in_graph": "values.rules.registered",
    "assume_constant_result": "values.rules.registered",
    "substitute_in_graph": "values.rules.registered",
    "trace_functions_compiled_by": "values.rules.nested_compilers",
    "Observer": "observer",
    "SilentObserver": "observer",
    "TracerOptions": "options",
    "Mark": "marks",
    "Payload": "output.entry",
    "Skip": "skips",
    "SkipKind": "skips",
    "is_out_of_room": "room",
    "profit_of": "output.profitability",
    "set_mark": "marks",
}

__all__ = [
    "BackendError",
    "ExportError",
    "FrameCompiler",
    "InternalError",
    "Mark",
    "Observer",
    "Payload",
    "RecompileRefused",
    "SilentObserver",
    "Skip",
    "SkipKind",
    "TracerOptions",
    "Unsupported",
    "__version__",
    "allow_in_graph",
    "assume_constant_result",
    "compile_handler",
    "export",
    "is_out_of_room",
    "optimize",
    "profit_of",
    "set_mark",
    "set_stance",
    "substitute_in_graph",
    "trace_functions_compiled_by",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{place}", __name__), name)
