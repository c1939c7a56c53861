"""`compile_graph`: a functional ATen graph to a callable, as a straight list of named and timed steps."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from treadle_codegen.codegen.cpp import CppRenderer
from treadle_codegen.codegen.host import Host
from treadle_codegen.codegen.host_sizes import SizeTexts, size_numbers, size_symbols
from treadle_codegen.codegen.kernel import RenderedKernel, Renderer, Segment, slot_key
from treadle_codegen.codegen.plan import ExecutionPlan
from treadle_codegen.codegen.probe import ENTRY, SOURCE, probe_of
from treadle_codegen.codegen.shape_specialisation import ShapeSpecialisation
from treadle_codegen.codegen.workspace import Entries
from treadle_codegen.errors import CodegenError, InternalError, OptionError
from treadle_codegen.ir.loops import Program, symbols_of
from treadle_codegen.ir.text import format_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower.program import lower_graph
from treadle_codegen.options import CodegenOptions
from treadle_codegen.rewrite.pipeline import rewrite_graph
from treadle_codegen.rewrite.static import Prologue
from treadle_codegen.schedule.fuse import Node, fuse
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.support import require_support

_SECONDS_PER_KERNEL = 0.1  # of compile time, where it is not known because the generic kernels came from the cache

TARGETS: dict[str, Callable[[CodegenOptions, int], Renderer]] = {"cpp": CppRenderer}


class CompiledGraph:
    """A compiled graph: call it with the graph's inputs, get the list of its outputs.

    `source` is the kernels' text, `host_source` the host function's, `ir_text` the program before fusion, `kernels` the
    rendered kernels, `seconds` the time spent by phase, `cache_hits` 1 when the library came from the cache.
    """

    def __init__(
        self, program: Program, host: Host, kernels: list[RenderedKernel], source: str, prologue: Prologue | None
    ) -> None:
        self._program = program
        self._host = host
        self._run = host.run
        self._prologue = prologue
        self.kernels = kernels
        self.source = source
        self.host_source = host.source
        self.seconds: dict[str, float] = {}
        self.cache_hits = 0

    @property
    def ir_text(self) -> str:
        return format_program(self._program)

    @property
    def hot(self) -> ShapeSpecialisation | None:
        """What decides which sizes get kernels of their own; None where no kernel takes sizes, or the option says so."""
        return self._host.hot

    def specialize(self) -> bool:
        """Compile kernels for the sizes of the last call, hot or not; whether calls at these sizes run such kernels now."""
        hot = self.hot
        return hot is not None and hot.last is not None and hot.specialize(hot.last)

    def __call__(self, *args: Any) -> list[Any]:
        if self._prologue is not None:
            args = (*args, *self._prologue(args))
        return self._run(*args)

    @property
    def function(self) -> Callable[..., list[Any]]:
        """The graph as a plain function of its inputs, the fastest way to call it."""
        return self._run if self._prologue is None else self.__call__


class _Phases:
    """Seconds by pass name, and the boundary that gives exceptions of a pass its name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        except CodegenError:
            raise
        except Exception as error:  # named boundary: context is added, nothing is swallowed
            raise InternalError(name, f"{type(error).__name__}: {error}") from error
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    target: str = "cpp",
    options: CodegenOptions | None = None,
) -> CompiledGraph:
    """Compile a functional ATen graph (docs/contracts.md §4) for `target`.

    Raises OptionError for an unknown target, CodegenUnavailable without a compiler, UnsupportedDevice or UnsupportedTensor
    (both CodegenUnavailable) for a graph with tensors that the target cannot address, InternalError for a bug of ours.
    """
    options = options or CodegenOptions()
    if target not in TARGETS:
        raise OptionError(f"unknown target {target!r}; known: {', '.join(sorted(TARGETS))}")
    threads = options.threads or torch.get_num_threads()
    require_support(gm, example_inputs, ("cpu",), target)
    renderer = TARGETS[target](options, threads)
    phase = _Phases()
    prologue = None
    if options.pack_weights:
        with phase("rewrite"):
            gm, prologue = rewrite_graph(gm, example_inputs)
    with phase("lower"):
        program = lower_graph(gm, example_inputs)
    if options.verify or program.bound_symbols:  # a number used before it is known would be garbage, not an error
        with phase("verify"):
            _require_valid(program)
    with phase("fuse"):
        nodes = fuse(
            program, max_members=options.max_fusion_members, parallel=threads > 1, max_row_bytes=options.max_row_bytes
        )
    with phase("render"):
        plan = _plan(program, nodes, renderer)
        kernels = [kernel for segment in plan.segments for kernel in segment.kernels]
        source = renderer.render_unit(plan.segments, plan.slots, program.buffers) + (SOURCE if prologue else "")
    with phase("build"):
        names = [segment.name for segment in plan.segments] + ([ENTRY] if prologue else [])
        entries, cached = renderer.load(source, names) if names else ({}, False)
    with phase("host"):
        derived = Prologue(prologue[0], prologue[1], probe_of(entries.pop(ENTRY))) if prologue else None
        entry_points = {name: _entry_point(entry) for name, entry in entries.items()}
        seconds = None if cached else phase.seconds["build"]
        host = _host(plan, entry_points, renderer, options.specialised_shapes, seconds)
    compiled = CompiledGraph(program, host, kernels, source, derived)
    compiled.seconds = phase.seconds
    compiled.cache_hits = int(cached)
    return compiled


def _entry_point(entry: Any) -> Callable[[int], None]:
    """A segment as a function of the address of the host's table."""
    entry.argtypes = [ctypes.c_void_p]
    entry.restype = None
    return entry


def _host(
    plan: ExecutionPlan,
    entries: dict[str, Callable[[int], None]],
    renderer: Renderer,
    limit: int,
    seconds: float | None,
) -> Host:
    """The host, with what it takes to compile anew the segments whose kernels take sizes; `seconds`: what the build took."""
    if not limit or not plan.program.size_symbols:
        return Host(plan, entries)
    sizes = set(size_numbers(plan, SizeTexts(size_symbols(plan))))
    sized = [s for s in plan.segments if any(kernel.constants(sizes) for kernel in s.kernels)]
    if not sized:
        return Host(plan, entries)

    def build(values: Mapping[Any, int | float], background: bool) -> Entries:
        segments = [Segment(s.name, tuple([renderer.specialize(k, values) for k in s.kernels])) for s in sized]
        source = renderer.render_unit(segments, plan.slots, plan.program.buffers)
        found, _ = renderer.load(source, names, background=background)
        return tuple([_entry_point(found[name]) for name in names])

    names = [segment.name for segment in sized]
    if seconds is None:
        seconds = _SECONDS_PER_KERNEL * len({kernel.function for segment in sized for kernel in segment.kernels})
    return Host(
        plan, entries, names, ShapeSpecialisation(limit, seconds, tuple([entries[name] for name in names]), build)
    )


def _require_valid(program: Program) -> None:
    problems = verify(program)
    if problems:
        raise InternalError("verify", "; ".join(map(str, problems[:5])))


def _plan(program: Program, nodes: list[Node], renderer: Renderer) -> ExecutionPlan:
    """Render the kernels, group runs of them into segments, give every buffer they use a slot in the host's table."""
    segments: list[Segment] = []
    segment_at: dict[int, Segment] = {}
    run: list[RenderedKernel] = []
    start = 0
    for k, node in enumerate([*nodes, None]):
        if node is not None and isinstance(node.item, Kernel):
            start = start if run else k
            run.append(renderer.render_kernel(node.item, program))
        elif run:
            segment = Segment(f"segment_{len(segments)}", tuple(run))
            segments.append(segment)
            segment_at[start] = segment
            run = []
    known = {*program.size_symbols, *program.bound_symbols}
    slots: dict[str, int] = {}
    for segment in segments:
        for kernel in segment.kernels:
            if unknown := symbols_of(kernel.numbers) - known:
                raise ValueError(f"{kernel.label} takes {unknown}, which nothing defines")
            for name in (*kernel.buffers, *map(slot_key, kernel.numbers)):
                slots.setdefault(name, len(slots) + 1)
    return ExecutionPlan(program, nodes, segments, segment_at, slots)
