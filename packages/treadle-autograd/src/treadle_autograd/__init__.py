"""Ahead-of-time functionalisation and decomposition of torch-level FX graphs to ATen graphs, with a runtime wrapper."""

from __future__ import annotations

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


def __getattr__(name: str) -> Any:
    """What programs that do not train need not is imported when it is asked for."""
    if name in ("KeepingCompiler", "keep_programs"):
        from .kept import store

        return getattr(store, name)
    if name not in ("PartitionReport", "keep_cuts", "min_cut", "save_everything", "with_budget"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import partition

    return getattr(partition, name)
