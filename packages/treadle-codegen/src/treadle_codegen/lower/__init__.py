"""From ATen graphs to programs of loops."""

from __future__ import annotations

from treadle_codegen.lower.program import lower_graph

__all__ = ["lower_graph"]
