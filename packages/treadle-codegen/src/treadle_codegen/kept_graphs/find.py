"""Graphs that an earlier compile has kept, to callables. None of the modules that compile a graph is imported here, until somebody asks
for the IR of one."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from treadle_codegen.compiled_graph import CompiledGraph, Lowered
from treadle_codegen.host.host import Host
from treadle_codegen.kept_graphs.key import identity_of, why_not_kept
from treadle_codegen.kept_graphs.record import Built
from treadle_codegen.kept_graphs.store import find_built
from treadle_codegen.options import CodegenOptions
from treadle_codegen.passes import Passes
from treadle_codegen.targets.cpp.build import kernel_cache
from treadle_codegen.targets.table import target_for
from treadle_codegen.targets.target import Target


def find_graph(
    name: str, graph: Callable[[], torch.fx.GraphModule], options: CodegenOptions | None = None
) -> CompiledGraph | None:
    """What `compile_graph` has made for the CPU, in this process or another, of a graph that it has kept under this name; None where it
    is not there any more. graph: makes the graph, if somebody asks for its IR."""
    options = options or CodegenOptions()
    target, device = target_for("cpu"), torch.device("cpu")
    phase = Passes(options)
    with phase("look up"):
        built = find_built(kernel_cache(options), name, target.externs)
    return None if built is None else from_built(built, graph, target, options, phase, device)


def identity_of_kept(options: CodegenOptions) -> str | None:
    """All that what is kept for the CPU depends on, beside the graph and PyTorch's settings; None where nothing is kept."""
    target = target_for("cpu")
    return identity_of(target, options) if why_not_kept(target, options) is None else None


def from_built(
    built: Built,
    graph: Callable[[], torch.fx.GraphModule],
    target: Target,
    options: CodegenOptions,
    phase: Passes,
    device: torch.device | None,
) -> CompiledGraph:
    """The graph from what an earlier compile has kept of it. It is compiled once more if somebody asks for its IR."""
    assert target.load_kept is not None

    @functools.cache
    def lowered() -> Lowered:
        from treadle_codegen.pipeline import compile_anew

        return compile_anew(graph(), (), target, options, Passes(options), device).lowered()

    with phase("build"):
        entries, cached = target.load_kept(options, built.source, built.entries) if built.entries else ({}, False)
    with phase("host"):
        allocation = target.allocation(device or torch.device(target.devices[0]))
        host = Host(built.program, target, allocation, entries)
    compiled = CompiledGraph(lowered, host, built.source, None)
    compiled.note_build(lambda: target.renderer(options).prelude, phase.seconds, cached, built.entries)
    return compiled
