"""Ahead-of-time functionalisation and decomposition of torch-level FX graphs to ATen graphs, with a runtime wrapper."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .__about__ import __version__
from .errors import InternalError, UnsupportedGraph, WrongResult
from .functional_trace import InferenceTrace, trace_inference
from .gradients_off import with_gradients_off
from .graph_runner import user_line
from .pieces import run_in_pieces, switches_inference_mode
from .pieces import why_not_compile as why_not_compile_piece
from .pipeline import aot

if TYPE_CHECKING:
    from .kept.store import KeepingCompiler, keep_programs
    from .partition import PartitionReport, keep_cuts, min_cut, save_everything, with_budget

__all__ = [
    "InferenceTrace",
    "InternalError",
    "KeepingCompiler",
    "PartitionReport",
    "UnsupportedGraph",
    "WrongResult",
    "__version__",
    "aot",
    "keep_cuts",
    "keep_programs",
    "min_cut",
    "run_in_pieces",
    "save_everything",
    "switches_inference_mode",
    "trace_inference",
    "user_line",
    "why_not_compile_piece",
    "with_budget",
    "with_gradients_off",
]


# Programs that do not train need none of it.
_HOMES = {
    **dict.fromkeys(("PartitionReport", "keep_cuts", "min_cut", "save_everything", "with_budget"), "partition"),
    **dict.fromkeys(("KeepingCompiler", "keep_programs"), "kept.store"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for by name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{home}", __name__), name)
