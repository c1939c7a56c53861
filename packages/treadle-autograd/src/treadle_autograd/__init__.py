"""Ahead-of-time functionalisation and decomposition of torch-level FX graphs to ATen graphs, with a runtime wrapper."""

from __future__ import annotations

from .__about__ import __version__
from .errors import InternalError, UnsupportedGraph
from .graph_runner import user_line
from .pipeline import InferenceTrace, aot, trace_inference

__all__ = ["InferenceTrace", "InternalError", "UnsupportedGraph", "__version__", "aot", "trace_inference", "user_line"]
