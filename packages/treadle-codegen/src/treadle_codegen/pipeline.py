"""`compile_graph`: a functional ATen graph to a callable, as a straight list of named and timed passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from treadle_codegen.compiled_graph import CompiledGraph, Lowered
from treadle_codegen.host.host_of_plan import host_of
from treadle_codegen.host.plan import ExecutionPlan, make_plan, verify_plan
from treadle_codegen.host.shape_specialisation import ShapeSpecialisation
from treadle_codegen.host.sizes import SizeTexts, size_numbers, size_symbols
from treadle_codegen.host.workspace import Entries
from treadle_codegen.ir.loops import Loop, Program
from treadle_codegen.ir.product import uses_tf32
from treadle_codegen.ir.text import format_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.kept_graphs.key import graph_key, why_not_kept
from treadle_codegen.kept_graphs.record import Built
from treadle_codegen.kept_graphs.restore import from_built
from treadle_codegen.kept_graphs.store import find_built, keep_built
from treadle_codegen.lower.program import lower_graph
from treadle_codegen.options import CodegenOptions
from treadle_codegen.passes import Passes, require
from treadle_codegen.rewrite.pipeline import Rewrite, rewrite_early, rewrite_graph
from treadle_codegen.rewrite.static import Prologue
from treadle_codegen.schedule.directions import alternate_directions
from treadle_codegen.schedule.early_checks import check_positions_early
from treadle_codegen.schedule.fuse import Node, fuse
from treadle_codegen.schedule.gather_numbers import gather_numbers
from treadle_codegen.schedule.in_place import updates_in_place, verify_in_place, without_copies
from treadle_codegen.schedule.kernel import Kernel
from treadle_codegen.schedule.late_updates import store_updates_late
from treadle_codegen.schedule.overwritten_parts import leave_out_overwritten
from treadle_codegen.schedule.row_results import store_row_results
from treadle_codegen.schedule.split_reductions import split_reductions
from treadle_codegen.schedule.text import format_nodes
from treadle_codegen.schedule.verify import verify_schedule
from treadle_codegen.support import main_device, require_reach, require_support, tensors_of
from treadle_codegen.targets.cpp.build import kernel_cache
from treadle_codegen.targets.renderer import Renderer, Segment
from treadle_codegen.targets.table import target_for, target_named
from treadle_codegen.targets.target import Probe, Target
from treadle_codegen.tune.trials import Measurer, Trial, Variant
from treadle_codegen.tune.tune import Tuned, kernel_key, tune_kernels, tune_products


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    target: str | None = None,
    options: CodegenOptions | None = None,
) -> CompiledGraph:
    """Compile a functional ATen graph (docs/contracts.md §4) for `target`, by default the one for the device of its tensors.

    Raises OptionError for an unknown target, CodegenUnavailable without a compiler, UnsupportedDevice or UnsupportedTensor
    (both CodegenUnavailable) for a graph with tensors that the target cannot address, InternalError for a bug of ours.

    What is made of the graph may be kept in the cache. Then `gm.meta["kept_as"]` tells the name that `find_graph` finds it under.
    """
    options = options or CodegenOptions()
    tensors = tensors_of(gm, example_inputs)
    device = main_device(tensors, target_named(target).devices if target else ())
    record = target_named(target) if target else target_for(device.type if device else "cpu")
    require_support(gm, tensors, record.devices, record.name, record.operator_devices)
    phase = Passes(options)

    key = built = None
    if why_not_kept(record, options) is None:
        with phase("look up"):
            key = graph_key(gm, record, options, device)
            built = None if key is None else find_built(kernel_cache(options), key, record.externs)
    gm.meta["kept_as"] = key if built is not None else None
    if built is not None:

        def again() -> CompiledGraph:
            return compile_anew(gm, (), record, options, Passes(options), device)

        return from_built(built, again, record, options, phase, device)
    compiled = compile_anew(gm, example_inputs, record, options, phase, device)
    if options.pack_weights:
        plain = replace(options, pack_weights=False)
        compiled.give_up_prologue_for(lambda: compile_anew(gm, (), record, plain, Passes(plain), device))
    if key is not None:
        made = Built(compiled.source, compiled.entries, compiled.host_program)
        with phase("keep"):
            gm.meta["kept_as"] = key if keep_built(kernel_cache(options), key, made) else None
    return compiled


def rewrites_for(target: Target, options: CodegenOptions) -> list[Rewrite]:
    """The target's own rewrites that pay off, given what it costs to check on every call that the weights did not change."""
    cheap = options.frozen_weights or (target.cheap_probe is not None and target.cheap_probe())
    rewrites = target.rewrites()
    return [rewrite for rewrite in rewrites.static if cheap or rewrite not in rewrites.cheaply_checked]


def compile_anew(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    record: Target,
    options: CodegenOptions,
    phase: Passes,
    device: torch.device | None,
) -> CompiledGraph:
    """The passes from the graph on; `device`: where its loops run."""
    saved = gm.graph.output_node().meta.get("saved_results", ())
    probe = record.probe
    prologue = None
    own = record.rewrites()
    if own.early:
        with phase("rewrite"):
            gm = rewrite_early(gm, own.early, phase.check)
    if options.pack_weights and (probe is not None or options.frozen_weights):
        with phase("rewrite"):
            rewrites = rewrites_for(record, options)
            gm, prologue = rewrite_graph(gm, example_inputs, rewrites, own.fake_rules, phase.check)
    probed = probe if prologue is not None and not options.frozen_weights else None
    with phase("lower"):
        program = lower_graph(gm, example_inputs, record.costs, record.dtypes, device)
        store_row_results(program, record.costs)
        split_reductions(program, record.costs)
        leave_out_overwritten(program, record.costs)
    build = _Build(record, options, phase, prologue, probed, saved)
    if not options.autotune or record.clock is None:
        return _from_program(program, {}, build)
    with phase("autotune"):
        tuned, trials = _tune(program, record, options)
    compiled = _from_program(tuned.program, tuned.choices, build)
    compiled.trials = trials
    if any(isinstance(step, Loop) and uses_tf32(step) for step in tuned.program.steps):
        compiled.run_exact_unless(record.allows_tf32, lambda: _from_program(program, {}, build))
    return compiled


class _Build(NamedTuple):
    """What is the same for every program that one graph is compiled from."""

    target: Target
    options: CodegenOptions
    phase: Passes
    prologue: tuple[Any, ...] | None
    probed: Probe | None
    saved: Sequence[int]


def _from_program(program: Program, choices: Mapping[tuple[str, ...], Any], build: _Build) -> CompiledGraph:
    """The passes from a lowered program on; `choices`: what is known of kernels (`tune.kernel_key`)."""
    record, options, phase, prologue, probed, saved = build
    renderer = record.renderer(options)
    require_reach(program, record.name)
    phase.check("lower", lambda: format_program(program), lambda: verify(program))
    if program.bound_symbols and not options.verify:
        with phase("verify"):  # a number used before it is known would be garbage, not an error
            require("lower", verify(program))
    with phase("fuse"):
        nodes = check_positions_early(program, gather_numbers(_fused(program, record, renderer, options)))
        nodes = store_updates_late(program, nodes)
        alternate_directions(program, nodes, record.costs)
        for node in nodes:
            node.choice = choices.get(kernel_key(node))
        program.in_place = updates_in_place(program, nodes)
    phase.check(
        "fuse",
        lambda: format_nodes(nodes),
        lambda: [
            *verify(program),
            *verify_schedule(program, nodes),
            *verify_in_place(program, nodes, program.in_place),
        ],
    )
    nodes = without_copies(nodes, program.in_place)
    with phase("render"):
        plan, source = _rendered(program, nodes, renderer, probed.text if probed else "")
        kernels = [kernel for segment in plan.segments for kernel in segment.kernels]
    phase.check("render", lambda: source, lambda: verify_plan(plan))
    with phase("build"):
        names = [segment.name for segment in plan.segments]
        probing = [probed.entry] if probed and probed.entry else []
        entries, cached = _loaded(renderer, source, [*names, *probing])
    with phase("host"):
        sampler = probed.sampler(entries.pop(probed.entry, None)) if probed else None
        derived = Prologue(*prologue, sampler) if prologue else None
        specialised = _specialisation(
            plan, entries, renderer, record, options, None if cached else phase.seconds["build"]
        )
        host = host_of(plan, record, entries, *specialised, verify=options.verify)
    phase.check("host", lambda: host.source, list)
    lowered = Lowered(program, kernels)
    compiled = CompiledGraph(lambda: lowered, host, source, derived)
    compiled.note_build(lambda: renderer.prelude, phase.seconds, cached, names)
    if options.cuda_graphs:
        compiled.replay_on(record, saved)
    return compiled


def _fused(program: Program, record: Target, renderer: Renderer, options: CodegenOptions) -> list[Node]:
    return fuse(
        program,
        max_members=options.max_fusion_members,
        parallel=renderer.parallel,
        max_row_bytes=options.max_row_bytes,
        costs=record.costs,
        why_not_local_row=record.why_not_local_row,
    )


def _rendered(program: Program, nodes: Sequence[Node], renderer: Renderer, more: str = "") -> tuple[ExecutionPlan, str]:
    """The plan, and the text of its kernels with `more` behind it."""
    plan = make_plan(program, nodes, renderer)
    return plan, renderer.render_unit(plan.segments, plan.slots, program.buffers) + more


def _loaded(renderer: Renderer, source: str, names: Sequence[str]) -> tuple[dict[str, Callable[[Any], None]], bool]:
    """The entry points of these names, and whether they came from the cache."""
    return renderer.load(source, names) if names else ({}, False)


def _tune(program: Program, record: Target, options: CodegenOptions) -> tuple[Tuned, list[Trial]]:
    """What is the fastest on the graph's device, and what was measured to know."""
    assert record.clock is not None
    renderer: Any = record.renderer(options)
    device = program.device or torch.device(record.devices[0])

    def fused(of: Program) -> list[Node]:
        return _fused(of, record, renderer, options)

    def compiled(variant: Variant) -> Callable[..., list[Any]]:
        own = record.renderer(options)
        nodes = fused(variant.program)
        first = next(node for node in nodes if isinstance(node.item, Kernel) or variant.choice is None)
        first.choice = variant.choice
        plan, source = _rendered(variant.program, nodes, own)
        return host_of(plan, record, _loaded(own, source, [s.name for s in plan.segments])[0]).run

    measurer = Measurer(record.clock(device), compiled, kernel_cache(options), device)
    tuned = Tuned(program)
    if record.product_loops:
        tuned = tune_products(program, fused, renderer, measurer, record.allows_tf32())
    tune_kernels(tuned, fused(tuned.program), renderer, measurer)
    return tuned, measurer.trials


def _specialisation(
    plan: ExecutionPlan,
    entries: Mapping[str, Callable[[Any], None]],
    renderer: Renderer,
    target: Target,
    options: CodegenOptions,
    seconds: float | None,
) -> tuple[Sequence[str], ShapeSpecialisation | None]:
    """The segments that can be compiled for given sizes, and what decides for which; `seconds`: what the build took."""
    if not options.specialised_shapes or not plan.program.size_symbols:
        return (), None
    sizes = set(size_numbers(plan, SizeTexts(size_symbols(plan))))
    sized = [s for s in plan.segments if any(kernel.constants(sizes) for kernel in s.kernels)]
    if not sized:
        return (), None
    names = [segment.name for segment in sized]

    def build(values: Mapping[Any, int | float], background: bool) -> Entries:
        segments = [Segment(s.name, tuple([renderer.specialise(k, values) for k in s.kernels])) for s in sized]
        source = renderer.render_unit(segments, plan.slots, plan.program.buffers)
        found, _ = renderer.load(source, names, background=background)
        return tuple([found[name] for name in names])

    if seconds is None:
        functions = {kernel.function for segment in sized for kernel in segment.kernels}
        seconds = target.costs.seconds_per_kernel * len(functions)
    generic = tuple([entries[name] for name in names])
    limit = options.specialised_shapes
    return names, ShapeSpecialisation(limit, seconds, generic, build, interrupt=target.interrupt_builds)
