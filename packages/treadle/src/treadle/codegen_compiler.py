"""The compiler of functional ATen graphs that the backend "codegen" gives to `aot`: treadle_codegen, with logs and statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

import treadle_codegen
from treadle_codegen import CodegenOptions, CompiledGraph, find_graph, identity_of_kept
from treadle_shapes.torch import save_fake_calls

from . import logs
from .bugs import Compiled
from .cuda_graphs import report_refusals
from .hook import without_hook
from .options import CompileOptions
from .shape_specialisation import report_specialisations
from .stats import stats


class CodegenCompiler:
    """Compiles graphs, and finds those that an earlier process has compiled (`treadle_autograd.KeepingCompiler`)."""

    def __init__(self, chosen: CodegenOptions, options: CompileOptions) -> None:
        self._chosen = chosen
        self._options = options

    @property
    def identity(self) -> str | None:
        """All that the results depend on beside the graph; None where nothing is kept, or somebody wants to see the graphs."""
        return None if logs.is_on("aten_code") else identity_of_kept(self._chosen)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        # By its name in the package, which imports it now: what compiles graphs is not needed where all of them are found.
        compiled = treadle_codegen.compile_graph(gm, example_inputs, options=self._chosen)
        save_fake_calls()
        return self._told(compiled)

    def find(self, name: str, graph: Callable[[], fx.GraphModule]) -> Compiled | None:
        """What is kept under the name, or None. graph: makes the graph, if somebody asks for its IR."""
        compiled = find_graph(name, graph, self._chosen)
        return None if compiled is None else self._told(compiled)

    def _told(self, compiled: CompiledGraph) -> Compiled:
        """The function of a compiled graph, after logs and statistics have heard of it."""
        for phase, seconds in compiled.seconds.items():
            stats.add_seconds(f"backend.codegen.{phase}", seconds)
        stats.add(cache_hits=compiled.cache_hits, cache_misses=compiled.cache_misses)
        logs.emit("output_code", lambda: f"{compiled.kernel_source}\n{compiled.host_source}")
        for trial in compiled.trials:
            logs.emit("autotune", lambda trial=trial: str(trial))
        if compiled.specialisation is not None:
            report_specialisations(compiled.specialisation, self._options)
        if compiled.replayed is not None:
            report_refusals(compiled.replayed)
        if compiled.runs_host_only:
            return compiled.function
        # It runs functions of the standard library and of PyTorch, and constructors that Python generates.
        return without_hook(compiled.function)
