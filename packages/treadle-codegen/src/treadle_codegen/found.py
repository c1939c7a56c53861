"""`find_graph`: a graph that an earlier compile has kept. None of the modules that compile graphs is imported here, until somebody asks for
the IR of one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from treadle_codegen.compiled_graph import CompiledGraph
from treadle_codegen.kept_graphs.key import identity_of, why_not_kept
from treadle_codegen.kept_graphs.restore import from_built
from treadle_codegen.kept_graphs.store import find_built
from treadle_codegen.options import CodegenOptions
from treadle_codegen.passes import Passes
from treadle_codegen.targets.cpp.build import kernel_cache
from treadle_codegen.targets.table import target_for


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
    if built is None:
        return None

    def again() -> CompiledGraph:
        from treadle_codegen.pipeline import compile_anew

        return compile_anew(graph(), (), target, options, Passes(options), device)

    return from_built(built, again, target, options, phase, device)


def identity_of_kept(options: CodegenOptions) -> str | None:
    """All that what is kept for the CPU depends on, beside the graph and PyTorch's settings; None where nothing is kept."""
    target = target_for("cpu")
    return identity_of(target, options) if why_not_kept(target, options) is None else None
