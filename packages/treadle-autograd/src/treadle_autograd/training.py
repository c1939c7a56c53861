"""Run compiled forward and backward graphs inside PyTorch's autograd.

    run(primals)                     forward graph: outputs and saved values; autograd gets one node, CompiledBackward
    loss.backward()                  backward graph: saved values and tangents -> gradients of the primals

What surrounds the graphs (static inputs, inputs that are written back, outputs that are views) is the business of `wrapper`, whose
operations autograd records as it records eager's.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes import paused, signals_held
from treadle_shapes.torch import outside_transforms, undisturbed

from .aliasing import picker
from .asked_gradients import keeps_graph
from .backward_pass import BackwardPass, Layout, begin_pass, gradients_elsewhere, laid_out
from .check_results import check_callable, check_results
from .early_versions import EarlyVersions
from .effects import is_random
from .joint import JointTrace
from .observed import NOBODY, Connections, Observers, connect, with_histories
from .partition import Halves, find_saved_for
from .rerun import DifferentiableRun, random_state
from .returned_views import without_views
from .separate_passes import SeparatePasses
from .staged import Stages, run_in_stages, somebody_waits
from .stand_ins import without_memory
from .traced_run import TracedRun, copy_with_history
from .unpacked import layouts_to_restore, unchanged, unpacked
from .unrecorded import run_unrecorded
from .wrapper import count_versions

if TYPE_CHECKING:
    from .gradient_programs import GradientPrograms
    from .gradients_together import SecondRun
    from .kept.program import KeptHalves, KeptTrace
    from .kept.store import BackwardNames

Compiled = Callable[..., Sequence[Any]]
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Compiled]


_MOST_SETS = 8  # of gradients with a backward graph of their own


@dataclass(frozen=True)
class ProgramFacts:
    """What a training program is told of its graphs, beside what `JointTrace` and `Halves` tell.

    not_differentiable  positions of the outputs that are tensors and have no gradient
    read_and_written    the inputs that the program changes in place and that its gradients depend on
    draws_random        whether the forward half draws random numbers
    """

    not_differentiable: tuple[int, ...]
    read_and_written: frozenset[int]
    draws_random: bool

    @classmethod
    def of(cls, joint: JointTrace, halves: Halves) -> ProgramFacts:
        outputs: Any = joint.graph.output_node().args[0][: joint.n_outputs]  # type: ignore[index]
        tensors = [k for k, node in enumerate(outputs) if isinstance(node, fx.Node) and _is_tensor(node)]
        return cls(
            tuple(k for k in tensors if k not in joint.tangents),
            inputs_read_and_written(joint),
            any(map(is_random, halves.forward.graph.nodes)),
        )


class TrainingProgram:
    """The compiled halves of one joint graph. Backward graphs are compiled when they are first needed, one for each set of gradients that
    is asked for: an output that the loss does not depend on has no tangent, and what follows from it no gradient."""

    def __init__(
        self,
        joint: JointTrace | KeptTrace,
        halves: Halves | KeptHalves,
        facts: ProgramFacts,
        forward: Compiled,
        compile_backward: Compiler,
        gradient_programs: GradientPrograms,
        names: BackwardNames | None = None,
    ) -> None:
        """names: those of compiled backward graphs that are kept for later processes."""
        self.joint = joint
        self.halves = halves
        self.forward = forward
        #: what surrounds a call of the program, which counts the versions of its outputs itself, before it saves them
        self.contract = without_views(replace(joint.contract, versions=()), joint.n_outputs, joint.views)
        #: positions of the outputs that get nodes of their own in autograd's graph
        self.own_nodes = tuple(place for place in joint.sources if place < joint.n_outputs)
        self.connections = Connections(joint)
        self.not_differentiable = facts.not_differentiable
        self.gradient_programs = gradient_programs
        #: positions of outputs -> the primals that they are copied into under autograd, and how the program changes these
        self.given_histories = {m.position: m for m in joint.contract.mutations if m.has_history}
        #: the primals of which a call keeps copies: running it again takes their old values, or their new history leads to the call itself
        self.copied = facts.read_and_written.union(m.input for m in self.given_histories.values())
        self.early_versions = EarlyVersions(joint.contract.mutations, halves.primals)
        self.draws_random = facts.draws_random
        self._compile_backward = compile_backward
        self._names = names
        #: positions, among the joint graph's, of the gradients that are ever computed. Autograd must not lead anywhere else: hooks of
        #: a parameter that gets no gradient are not called.
        #: All where there are none: the outputs have a history all the same.
        computed = tuple(k for k, reads in enumerate(halves.reads) if reads is not None)
        self.differentiated = computed or tuple(range(len(joint.gradients)))
        #: picks the primals that these belong to
        self.leading_to_gradients = picker([joint.gradients[k] for k in self.differentiated])
        self._n_inputs = len(joint.contract.inputs)
        changed = {mutation.input for mutation in joint.contract.mutations}
        #: the inputs whose history no gradient goes back into: a call that kept it would keep all calls before it alive. Gradients of
        #: gradients do where a custom function's depends on an argument that it gives none.
        ends = {
            *changed,
            *(joint.gradients[k] for k in computed),
            *(inputs_of_gradients(joint) if joint.custom else ()),
        }  # type: ignore[arg-type]
        self.apart_from_history = tuple(sorted({*range(self._n_inputs)} - ends))
        #: whether a custom function of the program must see the sum of all gradients that reach it (`gradients_together`)
        self.needs_whole_gradients = not all(custom.is_linear for custom in joint.custom)
        self._possible: dict[tuple[tuple[bool, ...], tuple[bool, ...]], tuple[int, ...]] = {}
        self._chosen: set[tuple[int, ...]] = set()
        self._backwards: dict[tuple[tuple[int, ...], tuple[int, ...]], Compiled] = {}
        self._absent: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._saved_for = halves.saved_for
        self._is_checked = False
        self._stages: Stages | None = None
        check_callable(forward, "forward")

    def __call__(self, *primals: Any) -> Sequence[Any]:
        if not self.early_versions or torch._C._are_functorch_transforms_active():
            call, results, values = self._recorded(primals)
        else:
            with self.early_versions.in_force(primals):
                call, results, values = self._recorded(primals)
        given = self.given_histories
        written = {position: (primals[m.input], m) for position, m in given.items()} if given else {}
        if self.connections:
            return connect(call, primals, results, values, written)
        return with_histories(results, written) if written else results

    def _recorded(self, primals: Sequence[Any]) -> tuple[Call, Sequence[Any], dict[int, torch.Tensor]]:
        """A call's results behind its nodes in autograd's graph, and the values of those that get nodes of their own."""
        # Behind the primals stand tensors that `halves` call known. The pass that computed them keeps them for as long as it needs them.
        call, values = Call(self, primals[: self._n_inputs]), dict[int, torch.Tensor]()
        try:
            if torch._C._are_functorch_transforms_active():
                results = CompiledBackward.apply(call, values, list(primals), *self.leading_to_gradients(primals))
            elif (stages := self._choose_stages(primals)) is not None:
                results = run_in_stages(call, values, primals, stages)
            else:
                results = _apply(call, values, primals)
        except Exception as error:
            # Behind the kernels, only the program's own saved-tensor hooks can raise (checkpoint ends a recomputation in this way).
            if call.has_run:
                error.raised_by_hook = True  # type: ignore[attr-defined]
            raise
        return call, results, values

    def _choose_stages(self, primals: Sequence[Any]) -> Stages | None:
        """The stages to run backward in; None where it runs in one piece. Behind the first call two primals tell."""
        if self._stages is None:
            if self.needs_whole_gradients:
                return None  # `gradients_together` knows one node of a call
            gradients = self.joint.gradients
            looked_at = (gradients[0], gradients[-1]) if self._is_checked else gradients
            if not somebody_waits([primals[k] for k in looked_at], look_closely=not self._is_checked):
                return None
            self._stages = Stages(self)
        return self._stages if len(self._stages.groups) > 1 else None

    def run_forward(self, primals: Sequence[Any]) -> Sequence[Any]:
        """The forward graph's results, which autograd does not record."""
        results = run_unrecorded(self.forward, primals)
        if not self._is_checked:
            if isinstance(self.halves, Halves):  # others have been checked when they were kept
                check_results(results, self.halves.forward.graph.output_node().args[0], "forward")  # type: ignore[arg-type]
            self._is_checked = True
        return results

    def possible(self, defined: tuple[bool, ...], needed: tuple[bool, ...]) -> tuple[int, ...]:
        """The positions of the gradients that depend on a tangent that is defined, or on none, and that are needed.

        needed: for each of `differentiated`, in its order."""
        found = self._possible.get((defined, needed))
        if found is None:
            given = {k for k, is_defined in enumerate(defined) if is_defined}
            wanted = {k for k, is_needed in zip(self.differentiated, needed, strict=True) if is_needed}
            reads = enumerate(self.halves.reads)
            found = tuple(k for k, read in reads if k in wanted and read is not None and (not read or read & given))
            self._possible[defined, needed] = found
        return found

    def absent(self, given: Sequence[torch.Tensor | None], wanted: tuple[int, ...]) -> tuple[int, ...]:
        """The tangents that are not defined and that the backward graph of these gradients does without. Zeros stand for others."""
        undefined = tuple(k for k, tangent in enumerate(given) if tangent is None)
        if not undefined or (wanted, undefined) in self._backwards:
            return undefined
        if undefined not in self._absent:
            if len(self._absent) >= _MOST_SETS:
                return ()
            is_kept = self._names is not None and self._names.has(wanted, undefined)
            with signals_held(), paused():
                does_without = is_kept or self.halves.whole().why_not_without(undefined) is None
            self._absent[undefined] = undefined if does_without else ()
        return self._absent[undefined]

    def read_from(self, numbers: Sequence[int]) -> frozenset[int]:
        """The places of the saved tensors that are read in a pass from the outputs of these tangents alone."""
        if not self._saved_for:
            with signals_held(), paused():
                halves = self.halves.whole()
                self._saved_for = halves.saved_for or find_saved_for(halves.classes, halves.saved)
        return frozenset().union(*[self._saved_for[number] for number in numbers])

    def run_backward(self, wanted: tuple[int, ...], absent: tuple[int, ...], arguments: Sequence[Any]) -> Sequence[Any]:
        """The gradients at these positions from saved values and the tangents that are not `absent`."""
        compiled = self._backwards.get((wanted, absent))
        if compiled is None:
            compiled = self._backwards[wanted, absent] = self._backward_of(wanted, absent)
        return compiled(*arguments)

    def _backward_of(self, wanted: tuple[int, ...], absent: tuple[int, ...]) -> Compiled:
        """The compiled graph of the gradients at these positions without these tangents, found or made."""

        def graph() -> fx.GraphModule:
            with signals_held(), paused():
                return self.halves.whole().backward(wanted, absent)

        found = None if self._names is None else self._names.find(wanted, absent, graph)
        if found is not None:
            return _below_autograd(found)
        made = graph()
        joint = self.joint.whole()
        gradients: Any = joint.graph.output_node().args[0][joint.n_outputs :]  # type: ignore[index]
        compiled = self.compile_backward(made, [gradients[k] for k in wanted])
        if self._names is not None:
            self._names.keep(wanted, absent, made.meta.get("kept_as"))
        return compiled

    def choose(self, asked: tuple[int, ...], possible: tuple[int, ...]) -> tuple[int, ...]:
        """The gradients to compute where those `asked` for are enough: all that are `possible` once many sets have graphs of their own."""
        if len(self._chosen) < _MOST_SETS:
            self._chosen.add(asked)
        return asked if asked in self._chosen else possible

    def compile_backward(self, graph: fx.GraphModule, results: Sequence[fx.Node]) -> Compiled:
        """Compile a backward graph, or a stage of it.

        results: the joint graph's nodes of what it returns, which the first run is checked by."""
        examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
        with torch.inference_mode(False), torch.no_grad(), undisturbed():
            compiled = self._compile_backward(graph, examples)
        check_callable(compiled, "backward")
        is_checked = False

        def run(*arguments: Any) -> Sequence[Any]:
            nonlocal is_checked
            with torch._C._AutoDispatchBelowADInplaceOrView():
                found = compiled(*arguments)
            if not is_checked:
                check_results(found, results, "backward")
                is_checked = True
            return found

        return run


def _below_autograd(compiled: Compiled) -> Compiled:
    def run(*arguments: Any) -> Sequence[Any]:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return compiled(*arguments)

    return run


# Batch norm in training mode returns new running statistics; its result does not depend on the old ones (arguments 3 and 4).
_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default


def inputs_read_and_written(joint: JointTrace) -> frozenset[int]:
    """The inputs that the program changes in place and that its gradients depend on: running it again takes their old values."""
    written = {mutation.input for mutation in joint.contract.mutations}
    return inputs_of_gradients(joint) & written if written else frozenset()


def inputs_of_gradients(joint: JointTrace) -> frozenset[int]:
    """The inputs that the gradients depend on."""
    places = {node: place for place, node in enumerate(joint.graph.find_nodes(op="placeholder"))}
    results: Any = joint.graph.output_node().args[0]
    pending = [node for node in results[joint.n_outputs :] if isinstance(node, fx.Node)]
    seen: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            ignored = set(node.args[3:5]) if node.target is _BATCH_NORM else set()
            pending += [used for used in node.all_input_nodes if used not in ignored]
    return frozenset(place for node, place in places.items() if node in seen)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


_VERSION = attrgetter("_version")


def _versions(values: Sequence[Any]) -> list[int]:
    """The versions of all values, for each as `_version` tells it."""
    try:
        return list(map(_VERSION, values))
    except (AttributeError, RuntimeError):  # numbers and inference tensors have none
        return list(map(_version, values))


def _version(value: Any) -> int:
    """How often a tensor has been written to; 0 for a number, and for a tensor made in inference mode, which autograd does not save."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


class Call:
    """One call of a program as its backward pass sees it: inputs, state of the random generator, observers of intermediate results."""

    def __init__(self, program: TrainingProgram, primals: Sequence[Any]) -> None:
        self.program = program
        copied = program.copied
        kept = [copy_with_history(p) if k in copied else p for k, p in enumerate(primals)] if copied else list(primals)
        for k in program.apart_from_history:
            if isinstance(kept[k], torch.Tensor) and kept[k].grad_fn is not None:
                kept[k] = kept[k].detach()
        self.primals = list(zip(kept, _versions(kept), strict=True))
        self.random_state = torch.get_rng_state() if program.draws_random else None
        self.observers = Observers() if program.own_nodes else NOBODY
        #: positions of the inputs' new values that no other output leads to (`Mutation.has_older_views`)
        self.apart: frozenset[int] = frozenset()
        self.has_run = False
        #: the places of the saved tensors that the program has changed since, and that the last pass has not read
        self.changed: frozenset[int] = frozenset()
        self._rerun: tuple[int, DifferentiableRun | TracedRun] | None = None
        self.second_run: weakref.ref[SecondRun] | None = None
        freed_by = program.joint.freed_by
        self.passes = SeparatePasses(freed_by, program.halves.saved_for) if freed_by else None

    def run_forward(self, primals: Sequence[Any]) -> ForwardResults:
        """Run the forward graph."""
        program = self.program
        results = program.run_forward(primals)
        self.has_run = True
        n_outputs = program.joint.n_outputs
        outputs, given = list(results[:n_outputs]), iter(results[n_outputs:])
        # Before they are saved: a saved tensor must have the version that it had then.
        versions = program.joint.contract.versions
        if versions:
            count_versions(outputs, versions)
        saved = [next(given) if place is None else primals[place] for place in program.halves.primals]
        return ForwardResults(program, outputs, saved, tuple(given))

    def rerun(self) -> DifferentiableRun | TracedRun:
        """The program, run once more under autograd.

        Raises RuntimeError when an input that matters has been changed in place since the forward pass.
        """
        self.raise_if_changed()
        self.program.gradient_programs.recipe.second_runs.note()
        traced = self._run_traced({})
        return traced if traced.why_not_found() is None else self._run_functional({})

    def rerun_cut(self) -> DifferentiableRun | TracedRun:
        """The program, run once more under autograd. Gradients end at outputs that others are computed from. Raises as `rerun`."""
        task = torch._C._current_graph_task_id()
        if self._rerun is not None and self._rerun[0] == task:
            return self._rerun[1]
        self.raise_if_changed()
        self.program.gradient_programs.recipe.second_runs.note()
        joint = self.program.joint
        cuts = {position: name for position, name in joint.cuts.items() if position not in self.apart}
        run = self._run_traced(cuts) if joint.results_to_cut else self._run_functional(cuts)
        self._rerun = None if torch.is_grad_enabled() else (task, run)  # kept for the other outputs of this pass
        return run

    def _run_traced(self, cuts: Mapping[int, str]) -> TracedRun:
        programs = self.program.gradient_programs
        run = TracedRun(programs.traced, self.program.joint.whole(), cuts, self._real(cuts))
        with outside_transforms(), self.as_in_forward(), torch.enable_grad(), programs.recipe.ambient.in_force():
            run.run([value for value, _ in self.primals])
        return run

    def _real(self, cuts: Mapping[int, str]) -> Mapping[int, torch.Tensor]:
        """The program's own tensors at the cuts, where gradients of gradients go to them."""
        return self.observers.alive() if cuts and torch.is_grad_enabled() else {}

    def _run_functional(self, cuts: Mapping[int, str]) -> DifferentiableRun:
        run = DifferentiableRun(self.program.halves.whole().reference, cuts, self._real(cuts))
        with outside_transforms(), self.as_in_forward(), torch.enable_grad():
            run.run(*run.gated([value for value, _ in self.primals]), enable_io_processing=False)
        return run

    def as_in_forward(self) -> AbstractContextManager[None]:
        """Inside, random numbers are those of the forward pass."""
        return random_state(self.random_state)

    def saved(self, ctx: Any, asked: BackwardPass) -> tuple[Sequence[torch.Tensor], bool]:
        """What the node has saved, and whether that is all of it: behind a first pass there is what was kept for this one.

        Raises what eager raises when they are gone, or have been changed."""
        if self.passes is not None and self.passes.have_begun:
            rest = self.passes.saved(asked.numbers())
            if rest is not None:
                return rest, False
        try:
            return unpacked(ctx.saved_tensors, ctx.saved_layouts), True
        except RuntimeError:
            numbers = asked.numbers()
            if ctx.saved_layouts is not None or len(numbers) == len(asked.given):  # what a hook raises, or what is read
                raise
        tensors, self.changed = unchanged(ctx, self.program.read_from(numbers))
        return tensors, False

    def let_go(self, asked: BackwardPass, saved: Sequence[torch.Tensor]) -> None:
        """Behind the last backward pass through the node of the outputs: a program may keep its losses, but not all batches with them."""
        if self.passes is not None:
            self.passes.let_go(asked.numbers(), saved, self.changed)
        if self.observers is NOBODY:  # else nodes of single outputs may run the program once more
            self.primals = []

    def forget_rerun(self) -> None:
        self._rerun = None

    def raise_if_changed(self) -> None:
        written = {mutation.input for mutation in self.program.joint.contract.mutations}
        for place, (value, version) in enumerate(self.primals):
            if isinstance(value, torch.Tensor) and _version(value) != version and place not in written:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"an input of shape {list(value.shape)} is at version {value._version}; expected version {version} instead"
                )


class ForwardResults:
    """What a forward graph has computed: the outputs, and the tensors and numbers that backward reads.

    layouts: sizes, strides, dtype and device of every output that is differentiated.
    """

    def __init__(
        self, program: TrainingProgram, outputs: list[Any], saved: list[Any], numbers: tuple[Any, ...]
    ) -> None:
        self.saved = saved
        self.numbers = numbers
        self.layouts: list[Layout] = [
            (outputs[k].size(), outputs[k].stride(), outputs[k].dtype, outputs[k].device)
            for k in program.joint.tangents
        ]
        self.device = self.layouts[0][3]
        self._program = program
        self._outputs = outputs

    def behind_own_nodes(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The tensors to save, aliases in the place of outputs that get nodes of their own (`observed`).

        Such a node leads to the one that saves: an output saved as it is would keep itself alive until a backward pass."""
        own = {id(self._outputs[position]) for position in self._program.own_nodes}
        return [tensor.detach() if id(tensor) in own else tensor for tensor in tensors] if own else tensors

    def not_differentiable(self) -> list[torch.Tensor]:
        """The outputs that have no gradient."""
        return [self._outputs[k] for k in self._program.not_differentiable]

    def move_behind_own_nodes(self, values: dict[int, torch.Tensor]) -> tuple[Any, ...]:
        """The outputs. Those that get nodes of their own go to `values`, tensors without memory stand in their place."""
        for position in self._program.own_nodes:
            values[position] = self._outputs[position]
            self._outputs[position] = without_memory(self._outputs[position])
        return tuple(self._outputs)


class CompiledBackward(torch.autograd.Function):
    """The node of one compiled graph in autograd's graph. `values` receives the outputs that get nodes of their own; `differentiated` are
    the primals that gradients are computed of."""

    @staticmethod
    def forward(ctx: Any, call: Call, values: dict[int, torch.Tensor], primals: list[Any], *differentiated: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.call = call
        results = call.run_forward(primals)
        ctx.numbers, ctx.layouts = results.numbers, results.layouts
        ctx.saved_layouts = layouts_to_restore(results.saved)
        ctx.save_for_backward(*results.behind_own_nodes(results.saved))
        ctx.mark_non_differentiable(*results.not_differentiable())
        return results.move_behind_own_nodes(values)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        call: Call = ctx.call
        program = call.program

        def functions() -> dict[int, Any]:
            nodes = [function for function, _ in ctx.next_functions]
            return dict(zip(program.differentiated, nodes, strict=True))

        asked = begin_pass(call, grad_outputs, ctx.needs_input_grad[_BESIDE:], functions)
        gradients: dict[int, Any] = dict.fromkeys(program.differentiated)
        second = None if call.second_run is None else call.second_run()
        if second is not None and not second.is_shared(ctx):
            second = None
        if not asked.wanted and second is None:
            return (None, None, None, *gradients.values())
        saved, is_whole = call.saved(ctx, asked)
        if second is not None:
            gradients |= second.at_call(ctx, program.joint.tangents, asked.given)
        elif asked.runs_compiled and (is_whole or asked.leaves_out_all_others(program)):
            absent = program.absent(asked.given, asked.wanted)
            given = [pair for k, pair in enumerate(zip(asked.given, ctx.layouts, strict=True)) if k not in absent]
            tangents = [laid_out(tangent, *data) for tangent, data in given]
            found = program.run_backward(asked.wanted, absent, (*saved, *ctx.numbers, *tangents))
            gradients |= zip(asked.wanted, found, strict=True)
        else:
            found = gradients_elsewhere(call, asked, ctx.layouts, saved if is_whole else None, node=ctx)
            gradients |= zip(asked.wanted, found, strict=True)
        if saved and not keeps_graph():  # autograd drops what it has saved now, and another pass raises
            call.let_go(asked, saved)
        return (None, None, None, *gradients.values())


_BESIDE = 3  # arguments of `CompiledBackward.forward` before the primals that it is differentiated by
_apply_node = super(torch.autograd.Function, CompiledBackward).apply
_unwrap = torch._C._functorch.unwrap_if_dead


def _apply(call: Call, values: dict[int, torch.Tensor], primals: Sequence[Any]) -> Sequence[Any]:
    """`CompiledBackward.apply`, without what it looks up in every call for functions that have `setup_context`.

    A tensor that a transform of `torch.func` has left behind is unwrapped, as there."""
    given = [_unwrap(p) if isinstance(p, torch.Tensor) else p for p in primals]
    return _apply_node(call, values, given, *call.program.leading_to_gradients(given))  # type: ignore[no-any-return]
