"""Report graphs that are not recorded as CUDA graphs although the options ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import logs

if TYPE_CHECKING:
    from treadle_codegen.host.replay import ReplayedGraph


def report_refusals(replayed: ReplayedGraph) -> None:
    """Log why calls of the graph are not recorded: now, or when a recording fails."""

    def report(reason: str) -> None:
        logs.emit("cuda_graphs", f"launched kernel by kernel: {reason}")

    replayed.on_refusal = report
    if replayed.why_not is not None:
        report(replayed.why_not)
