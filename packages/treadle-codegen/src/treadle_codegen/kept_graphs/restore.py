"""A kept graph to a callable."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from treadle_codegen.compiled_graph import CompiledGraph, Lowered
from treadle_codegen.host.host import Host
from treadle_codegen.kept_graphs.record import Built
from treadle_codegen.options import CodegenOptions
from treadle_codegen.passes import Passes
from treadle_codegen.targets.target import Target


def from_built(
    built: Built,
    again: Callable[[], CompiledGraph],
    target: Target,
    options: CodegenOptions,
    phase: Passes,
    device: torch.device | None,
) -> CompiledGraph:
    """The graph from what an earlier compile has kept of it. again: compiles it once more, if somebody asks for its IR."""
    assert target.load_kept is not None

    @functools.cache
    def lowered() -> Lowered:
        return again().lowered()

    with phase("build"):
        entries, cached = target.load_kept(options, built.source, built.entries) if built.entries else ({}, False)
    with phase("host"):
        allocation = target.allocation(device or torch.device(target.devices[0]))
        host = Host(built.program, target, allocation, entries)
    compiled = CompiledGraph(lowered, host, built.source, None)
    compiled.note_build(lambda: target.renderer(options).prelude, phase.seconds, cached, built.entries)
    return compiled
