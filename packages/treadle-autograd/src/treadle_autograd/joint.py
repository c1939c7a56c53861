"""Trace a torch-level graph and its gradients into one functional ATen graph.

    def f(x, w): return torch.tanh(x @ w)       ==>   primals x, w; tangent t
    x and w require gradients                         mm = x @ w; out = tanh(mm)
                                                      g = tanh_backward(t, out); dx = g @ w.T; dw = x.T @ g
                                                      output (out, dx, dw)

PyTorch's own autograd differentiates: the graph runs on functional fake tensors that require gradients, `torch.autograd.grad` runs
their backward formulas, and the recorder below functionalisation writes the operators of both into one graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from treadle_shapes import ShapesError
from treadle_shapes.torch import fake_like, is_made_in_no_grad, operator, undisturbed

from .asserts import hoist_asserts
from .contract import (
    Contract,
    FreshOutput,
    InputItself,
    OutputDescription,
    Relation,
    SameAsOutput,
    ViewOfFresh,
    ViewOfInput,
)
from .custom_gradients import CustomCall, forget_unused_gradients, note_tangents
from .decompositions import Decompositions
from .describe import GraphOutputs, describe_outputs, output_numbers
from .effects import remove_dead_nodes
from .errors import UnsupportedGraph
from .functional_trace import FunctionalTrace
from .functionalise import grad_fn_of, wrap
from .histories import functions_behind
from .inner_gradients import differentiable_outputs
from .later_writes import with_older_views
from .lost_histories import times_written, why_history_is_lost
from .random_replay import note_states
from .refusals import call_torch, why_not_functional
from .returned_views import ReturnedView, ViewSearch, equal_views, in_one_place, why_not_cut
from .separate_passes import freed_by
from .shared_regions import RegionDiffers, SharedRegions
from .short_cuts import short_cuts_not_taken


@dataclass(frozen=True)
class JointTrace:
    """The functional graph of a program and its gradients.

    graph      placeholders: the primals (parameters and buffers, then the call's inputs), then one tangent for each of `tangents`;
               output: (*outputs, *gradients), every item a node or None; `meta["of_backward"]`: a formula of backward made the node
    contract   what surrounds the forward part; its outputs are the first `n_outputs` items
    tangents   positions of the outputs that are differentiated, in the order of the tangents
    gradients  positions of the primals that the gradients belong to, in order
    sources    where there are several differentiable outputs, for each the places of those that autograd computes it from. The place of an
               output is its position; those of `views` follow behind all outputs.
    custom     calls of custom autograd functions in the forward part
    cuts       for every place that an output is computed from, the name of the node that it is computed from
    freed_by   for every tangent the numbers of those whose backward passes drop what eager's pass from it reads (`separate_passes`); empty
               where all do
    lossy      why the forward part, run under autograd, has another history than the program (`lost_histories`), or None
    results_to_cut  where it is lossy, the calls of the traced graph in the place of `cuts`' nodes
    views      the user's outputs that are views and stand between other outputs, or below one another (`returned_views`)
    states     random nodes that backward can replay -> the node that reads the generator's state in front of each
    """

    graph: fx.Graph
    contract: Contract
    input_values: tuple[Any, ...]
    n_outputs: int
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    sources: Mapping[int, tuple[int, ...]]
    cuts: Mapping[int, str]
    custom: tuple[CustomCall, ...]
    states: Mapping[fx.Node, fx.Node]
    lossy: str | None = None
    freed_by: tuple[frozenset[int], ...] = ()
    results_to_cut: Mapping[int, str] = field(default_factory=dict)
    views: tuple[ReturnedView, ...] = ()

    @property
    def n_primals(self) -> int:
        return len(self.input_values)

    def whole(self) -> JointTrace:
        """The trace itself; `kept.program.KeptTrace` makes it."""
        return self


@dataclass(frozen=True)
class Gradients:
    """Gradients of a program's results, which become the results of another program: its arguments are the tangents as well.

    outputs        positions of the results among the outputs of the functional graph
    inputs         positions of the primals that the gradients belong to
    requires_grad  for each tangent, whether autograd records what is computed from it
    """

    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    requires_grad: tuple[bool, ...]


class _Joint(FunctionalTrace):
    """One run of `trace_joint`."""

    def bind_input(self, node: fx.Node, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        wrapper = super().bind_input(node, fake, real)
        if not self.computes_gradients:  # else it has been done
            self.take_history_of(real, wrapper, fake)
        return wrapper

    def differentiable_inputs(self) -> list[int]:
        return [i for i, wrapper, _ in self.inputs.tensors() if id(wrapper) in self.differentiable]

    def differentiate(self, positions: Sequence[int], primals: Sequence[int]) -> list[fx.Node | None]:
        """Record the backward pass from the outputs at `positions`; returns one gradient node, or None, for each of `primals`."""
        tangents = [self._tangent(number, position) for number, position in enumerate(positions)]
        gradients = self._outputs_apart()
        for node in self.outputs.nodes:
            if isinstance(node, fx.Node) and isinstance(node.meta["val"], torch.Tensor):
                gradients.forbid_storage_of(node.meta["val"])
        self.recorder.meta = {"of_backward": True}
        found = self._gradients(positions, primals, tangents)
        places: dict[int, int] = {}  # one output for a gradient that several inputs share
        nodes: list[fx.Node | None] = []
        with self.mode:
            for gradient in found:
                if gradient is None:
                    nodes.append(None)
                    continue
                if id(gradient) not in places:
                    places[id(gradient)] = gradients.add(gradients.value_of(gradient))
                nodes.append(gradients.nodes[places[id(gradient)]])
        return nodes

    def become_gradients(self, wanted: Gradients) -> tuple[list[Any], Contract]:
        """Make gradients of the outputs the results of the trace. Returns them, and what surrounds the graph that computes them alone."""
        tangents: list[torch.Tensor] = []
        n_arguments = len(self.inputs.wrappers) - self.recorded.n_static
        for number, (position, requires_grad) in enumerate(zip(wanted.outputs, wanted.requires_grad, strict=True)):
            fake = fake_like(self.mode, self.outputs.nodes[position].meta["val"])
            node = self.recorded.add_call_input(f"given_{n_arguments + number}", n_arguments + number, fake)
            self.recorder.bind(fake, node)
            with self.mode:
                tangents.append(wrap(fake))
            self.let_require_gradients(tangents[-1], requires_grad)
            self._append_input(tangents[-1], fake)
        self.recorder.meta = {}
        found = self._gradients(wanted.outputs, wanted.inputs, tangents, create_graph=True)
        self.outputs = self._outputs_apart()
        return list(found), self.describe_values(found)

    def describe_values(self, values: Sequence[Any]) -> Contract:
        """Describe `values`, computed from the trace's inputs, as the only results; what the program writes to its inputs is left out."""
        self._make_room_for_constants()
        self.inputs.expected_metadata = self.inputs.fakes
        with self.mode:
            described = describe_outputs(values, values, self.inputs, self.outputs)
            numbers = output_numbers(self.inputs, described, self.outputs)
        return Contract(tuple(self.recorded.inputs), (), described, numbers)

    def with_constants_of_backward(
        self, contract: Contract, primals: tuple[int, ...], views: tuple[ReturnedView, ...]
    ) -> tuple[Contract, tuple[int, ...], tuple[ReturnedView, ...]]:
        """The contract, the positions of the primals and the views, after backward formulas have met constants, which are inputs, too."""
        inputs = tuple(self.recorded.inputs)
        n_constants = len(inputs) - len(contract.inputs)
        if not n_constants:
            return contract, primals, views
        first = self.recorded.n_static - n_constants
        self._make_room_for_constants()

        def moved(position: int) -> int:
            return position + n_constants if position >= first else position

        moved_views = tuple(view.with_input_at(moved) for view in views)
        return contract.with_inputs(inputs, moved), tuple(map(moved, primals)), moved_views

    def _outputs_apart(self) -> GraphOutputs:
        """Outputs that share no memory with the graph's placeholders."""
        outputs = GraphOutputs(self.recorder)
        for placeholder in self.recorded.graph.find_nodes(op="placeholder"):
            if isinstance(placeholder.meta["val"], torch.Tensor):
                outputs.forbid_storage_of(placeholder.meta["val"])
        return outputs

    def _gradients(
        self,
        positions: Sequence[int],
        primals: Sequence[int],
        tangents: Sequence[torch.Tensor],
        create_graph: bool = False,
    ) -> Sequence[torch.Tensor | None]:
        outs = [self.outputs.wrappers[position] for position in positions]
        inputs = [self.inputs.leaf_of(index) for index in primals]
        return self.gradients_of(outs, inputs, tangents, create_graph=create_graph)

    def gradients_of(
        self,
        outs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
        **options: bool,
    ) -> Sequence[torch.Tensor | None]:
        """Record the gradients of `outs`, functional tensors. options: of `torch.autograd.grad`.

        Raises UnsupportedGraph for gradients that no functional graph returns.
        """
        if any(_may_raise_in_derivative(node, self.outputs.nodes) for node in self.recorded.graph.nodes):
            raise UnsupportedGraph("a derivative of complex eigenvectors or singular vectors raises for some gradients")
        options = {"allow_unused": True, **options}
        # Backward formulas run in the dtypes of forward, whatever autocast is in force there.
        with self.recording(), torch._C._DisableAutocast(), short_cuts_not_taken(self.mode):
            found: Any = call_torch(torch.autograd.grad, (outs, inputs, tangents), options, self.recorder.line)
        for gradient in found:
            if gradient is not None and (
                gradient.layout is not torch.strided or gradient.is_conj() or gradient.is_neg()
            ):
                raise UnsupportedGraph("a gradient is sparse, or a lazily conjugated or negated view")
        return found  # type: ignore[no-any-return]

    def _tangent(self, number: int, position: int) -> torch.Tensor:
        output = self.outputs.nodes[position].meta["val"]
        fake = fake_like(self.mode, output)
        node = self.recorded.graph.placeholder(f"tangent_{number}")
        node.meta["val"] = fake
        self.recorder.bind(fake, node)
        with self.mode:
            return wrap(fake)


def _may_raise_in_derivative(node: fx.Node, outputs: Sequence[fx.Node]) -> bool:
    """Whether the derivative of a call would look at elements, and raise, if they were not those of fake tensors."""
    record = operator(node.target) if node.op == "call_function" else None
    if record is None or not record.derivative_raises or node.meta.get("no_grad"):
        return False
    items = [item for item in node.users if item.args[1:] and item.args[1] in record.derivative_raises]
    return any(item.meta["val"].is_complex() and (item.users or item in outputs) for item in items)


_CHANGES = "an input begins or ceases to require gradients"


def why_not_differentiable(
    described: Sequence[OutputDescription], values: Sequence[Any], trace: _Joint, contract: Contract
) -> str | None:
    """Why autograd would connect the rebuilt outputs otherwise than eager does."""
    wrappers = trace.inputs.wrappers
    if any(
        requires_grad or id(wrappers[index]) not in trace.inputs.leaves
        for index, requires_grad in contract.requires_grad
    ):
        return _CHANGES
    if any(value.is_leaf and not value._is_view() for value in differentiable_outputs(values, wrappers)):
        return "an output is a leaf that requires gradients"
    unrecorded = {mutation.input for mutation in contract.mutations if not mutation.has_history}
    for output, value in zip(described, values, strict=True):
        if not isinstance(value, torch.Tensor) or isinstance(output, (InputItself, SameAsOutput)):
            continue
        if isinstance(output, ViewOfInput) and output.input in unrecorded and value.requires_grad:
            return "an output is a view of an input that is changed in place where autograd does not record it"
        base: Any = None
        if isinstance(output, ViewOfInput):
            base = wrappers[output.input]
        elif isinstance(output, (FreshOutput, ViewOfFresh)):
            base = trace.outputs.wrappers[output.position]
        if isinstance(output, (ViewOfInput, ViewOfFresh)) and value.requires_grad:
            # Detached, and written to; or given the gradient of a custom function (a gradient reversal returns its input).
            if not _has_history_of_base(value) or _is_behind_custom_function(value, base):
                return "an output shares memory with a tensor, and has a history of its own"
        relation = getattr(output, "relation", Relation.VIEW)
        if base is not None and relation is Relation.VIEW and base.requires_grad != value.requires_grad:
            return "an output shares memory with a tensor and is detached from it"
    return None


def _has_history_of_base(value: torch.Tensor) -> bool:
    """Whether autograd takes a tensor with the memory of another for a part of it: not if it is detached and has been written to, nor if
    it is a view, made with gradients on, of a view that was made with gradients off."""
    if not value._is_view():
        return False
    return not is_made_in_no_grad(value) or grad_fn_of(value) is None


def _is_behind_custom_function(value: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether gradients go from `value`, a view of `base`, through a custom function: operators that make views have one input each."""
    function, end = grad_fn_of(value), grad_fn_of(base)
    while function is not None and function is not end:
        if isinstance(function, torch.autograd.function.BackwardCFunction):
            return True
        function = function.next_functions[0][0] if function.next_functions else None
    return False


def why_not_differentiable_twice(values: Sequence[Any]) -> str | None:
    """Why autograd raises where gradients that are differentiated are not to be. A trace does not meet the node that does so: it has no
    successor, so nothing that gradients are wanted of is behind it."""
    behind = functions_behind(grad_fn_of(value) for value in values if isinstance(value, torch.Tensor))
    if any(function.name() == "torch::autograd::Error" for function in behind):
        return "a function is differentiated twice that may be differentiated once"
    return None


def _cuts(
    job: _Joint,
    results: Sequence[Any],
    search: ViewSearch,
    views: Sequence[ReturnedView],
    sources: Mapping[int, tuple[int, ...]],
) -> dict[int, str]:
    """The names of the nodes at the places that outputs of the graph are computed from, by place."""
    n_outputs = len(job.outputs.nodes)
    read = {source for place, below in sources.items() if place < n_outputs for source in below}
    values = {**job.outputs.wrappers, **{n_outputs + k: results[view.output] for k, view in enumerate(views)}}
    origins = {place: job.outputs.origins[place] for place in read if place < n_outputs}
    with job.mode:
        for place in sorted(read - origins.keys()):
            origins[place] = job.recorder.node_of(job.outputs.value_of(values[place]))
    anew = [place for place in read if values[place]._is_view() and times_written(values[place])]
    equal = equal_views(job.recorded.graph) if anew else {}
    for place in anew:
        node = origins[place]
        origins[place] = in_one_place(node, equal.get(node, [node]), search.n_equal(values[place]))
    reason = why_not_cut(origins, job.outputs.nodes, sources, {*anew, *range(n_outputs, n_outputs + len(views))})
    if reason is not None:
        raise UnsupportedGraph(reason)
    return {place: node.name for place, node in origins.items()}


def trace_joint(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    decompositions: Decompositions,
    orders: Sequence[Gradients] = (),
    *,
    share: bool = True,
) -> JointTrace | None:
    """The joint graph of `gm`; None where no output depends on an input that requires gradients.

    orders: instead of the program itself, the program of these gradients of its results; behind the first, of gradients of gradients.
    share: whether parts that repeat may be traced once (`shared_regions`).

    Raises `UnsupportedGraph` where there is no functional form, or autograd could not see what eager's sees.
    """
    reason = why_not_functional(gm)
    if reason is not None:
        raise UnsupportedGraph(reason)
    try:
        return _trace(gm, example_inputs, decompositions, orders, share and not orders)
    except RegionDiffers:
        return _trace(gm, example_inputs, decompositions, orders, share=False)


def _trace(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    decompositions: Decompositions,
    orders: Sequence[Gradients],
    share: bool,
) -> JointTrace | None:
    with torch.inference_mode(False), torch.enable_grad(), undisturbed():
        job = _Joint(gm, example_inputs, decompositions)
        job.recorder.for_training = True
        if share and not job.computes_gradients:
            job.regions = SharedRegions(gm.graph, job.recorder, lambda gm, values: _Joint(gm, values, decompositions))
        try:
            run = job.run()
            values, contract = run.outputs, job.describe(run)
            for wanted in orders:
                values, contract = job.become_gradients(wanted)
            return _differentiated(job, values, contract, is_of_gradients=bool(orders))
        except ShapesError as error:
            raise UnsupportedGraph(
                f"a number must be known before the graph runs: {error}", job.recorder.line()
            ) from error


def _differentiated(
    job: _Joint, values: Sequence[Any], contract: Contract, *, is_of_gradients: bool
) -> JointTrace | None:
    reason = why_not_differentiable(contract.outputs, values, job, contract)
    if reason is None and (is_of_gradients or job.computes_gradients):
        reason = why_not_differentiable_twice(values)
    if reason is not None:
        raise UnsupportedGraph(reason)
    positions = tuple(p for p, wrapper in sorted(job.outputs.wrappers.items()) if grad_fn_of(wrapper) is not None)
    primals = tuple(job.differentiable_inputs())
    n_outputs = len(job.outputs.nodes)
    wrappers = {position: job.outputs.wrappers[position] for position in positions}
    search = ViewSearch(contract.outputs, () if is_of_gradients else values, wrappers, n_outputs)
    if search.are_alone():
        raise UnsupportedGraph("an output is a view of another one, and nothing else has a history")
    if not positions or not primals:
        return None
    contract = with_older_views(contract, job.gm)
    views, sources = search.found()
    older = {mutation.position for mutation in contract.mutations if mutation.has_older_views}
    if any(view.source in older for view in views):
        raise UnsupportedGraph("an output is a view of an input that has older views than the write to it")
    cuts = _cuts(job, values, search, views, sources)
    for node in job.recorded.graph.nodes:
        node.meta.pop("mutates", None)  # autograd's outputs are memory of their own, and gradients write nothing back
    custom = tuple(job.recorder.custom_calls)
    freed = freed_by([grad_fn_of(job.outputs.wrappers[position]) for position in positions]) if sources else ()
    note_tangents(custom, [job.outputs.wrappers[position] for position in positions])
    gradients = job.differentiate(positions, primals)
    if any(gradients[primals.index(index)] is not None for index, _ in contract.requires_grad):
        raise UnsupportedGraph(_CHANGES)  # a second run of the program would not find the history that the input had
    contract, primals, views = job.with_constants_of_backward(contract, primals, views)
    graph = job.recorded.graph
    graph.output((*job.outputs.nodes, *gradients))
    hoist_asserts(graph)
    remove_dead_nodes(graph, {node for call in custom for node in call.nodes()})
    forget_unused_gradients(custom, graph)
    states = note_states(graph, job.mode)
    fakes = tuple(job.inputs.fakes)
    with_history = [] if custom else [job.outputs.nodes[position] for position in positions]
    lossy = why_history_is_lost(graph, primals, job.recorder.histories, with_history)
    if not all(call.is_linear for call in custom):
        freed = ()  # `gradients_together` knows one node that saves
    return JointTrace(
        graph, contract, fakes, n_outputs, positions, primals, sources, cuts, custom, states, lossy, freed, views=views
    )
