"""Record the functional ATen graph of a torch-level graph, and describe what surrounds it.

def f(x): x.add_(1); return x * 2      ==>    %add = aten.add(%x, 1);  %mul = aten.mul(%add, 2);  output (%add, %mul)
                                              contract: output 0 is copied into x, output 1 is the result
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from treadle_shapes import ShapesError
from treadle_shapes.torch import (
    HooklessGraphModule,
    begin_history,
    fake_like,
    fake_mode,
    preserved_operators,
    symbolic_dispatch,
)

from .asserts import hoist_asserts
from .contract import Contract, ViewOfInput
from .decompositions import Decompositions
from .describe import (
    GraphOutputs,
    Inputs,
    describe_mutations,
    describe_outputs,
    output_numbers,
    why_not_same_metadata,
    with_unrecorded,
    with_views_of_several,
)
from .early_checks import move_checks_forward
from .effects import remove_dead_nodes
from .errors import InternalError, UnsupportedGraph
from .expected_metadata import run_as_eager
from .functionalise import FunctionalRun, SharedCalls, functionalisation, run_functional, wrap
from .inner_gradients import changed_inputs, computes_gradients, differentiable_outputs
from .recorder import AtenRecorder, RecordedGraph
from .refusals import TYPED, why_not_functional
from .unbacked import shape_env_of


@dataclass(frozen=True)
class InferenceTrace:
    """The functional ATen graph of a torch-level graph, its contract, and the fake values of its placeholders."""

    graph_module: fx.GraphModule
    contract: Contract
    input_values: tuple[Any, ...]


def trace_inference(
    gm: fx.GraphModule, example_inputs: Sequence[Any], decompositions: Decompositions
) -> InferenceTrace:
    """Functionalise and decompose `gm`. Raises `UnsupportedGraph` if it has no functional ATen form."""
    reason = why_not_functional(gm)
    if reason is not None:
        raise UnsupportedGraph(reason)
    grad_mode = torch.is_grad_enabled() and computes_gradients(gm)
    with torch.inference_mode(False), torch.set_grad_enabled(grad_mode):
        job = FunctionalTrace(gm, example_inputs, decompositions)
        try:
            run = job.run()
            if differentiable_outputs(run.outputs, job.inputs.wrappers):
                raise UnsupportedGraph("an output requires gradients, and the graph is compiled for inference")
            contract = job.describe(run)
            if any(mutation.has_history for mutation in contract.mutations):
                raise UnsupportedGraph("an input gets a history, and the graph is compiled for inference")
        except ShapesError as error:
            raise UnsupportedGraph(
                f"a number must be known before the graph runs: {error}", job.recorder.line()
            ) from error
    return InferenceTrace(job.finish(), contract, tuple(job.inputs.fakes))


class FunctionalTrace:
    """One recording of a graph. The steps in order: `run`, `describe`, `finish`."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], decompositions: Decompositions) -> None:
        self.gm = gm
        self.computes_gradients = computes_gradients(gm)
        self.differentiable: set[int] = set()  # identities of the wrappers that require gradients from the start
        self.placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.mode = mode_of(self.placeholders) or mode_of(gm.graph.nodes) or fake_mode()
        self.recorded = RecordedGraph()
        self.recorder = AtenRecorder(self.recorded, self.mode, decompositions)
        self.inputs = Inputs([], [], [])
        self.attributes: dict[str, Any] = {}
        self.outputs = GraphOutputs(self.recorder)
        with self.mode:
            self._add_attributes()
            self.arguments = self._add_call_inputs(example_inputs)
        self.regions: SharedCalls | None = None

    def _add_attributes(self) -> None:
        by_identity: dict[int, torch.Tensor] = {}
        for node in self.gm.graph.nodes:
            if node.op != "get_attr" or (target := str(node.target)) in self.attributes:
                continue
            value = attrgetter(target)(self.gm)
            if isinstance(value, torch.Tensor):
                if id(value) not in by_identity:
                    fake = fake_like(self.mode, value)
                    graph_node = self.recorded.add_static(target.replace(".", "_"), value, fake)
                    by_identity[id(value)] = self.bind_input(graph_node, fake, value)
                value = by_identity[id(value)]
            self.attributes[target] = value

    def _add_call_inputs(self, example_inputs: Sequence[Any]) -> list[Any]:
        arguments: list[Any] = []
        for index, (node, real) in enumerate(zip(self.placeholders, example_inputs, strict=True)):
            example = node.meta.get("example_value", real)
            if not isinstance(example, torch.Tensor):
                graph_node = self.recorded.add_call_input(node.name, index, example)
                self.recorder.bind(example, graph_node)
                self._append_input(example, example)
                arguments.append(example)
                continue
            if example.dim() != real.dim():
                raise UnsupportedGraph("the sizes or strides of an input are changed in place")
            fake = fake_like(self.mode, example)
            arguments.append(self.bind_input(self.recorded.add_call_input(node.name, index, fake), fake, real))
        return arguments

    def bind_input(self, node: fx.Node, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """The functional tensor that stands for the input `real` while the graph is recorded. Called in the fake mode."""
        self.recorder.bind(fake, node)
        wrapper = wrap(fake)
        if self.computes_gradients:
            self.take_history_of(real, wrapper, fake)
        self._append_input(wrapper, fake)
        self.outputs.forbid_storage_of(fake)
        return wrapper

    def take_history_of(self, real: torch.Tensor, wrapper: torch.Tensor, fake: torch.Tensor) -> None:
        """Let the wrapper of an input require gradients if the input does. It is a leaf if the input is one; all gradients end at it."""
        if real.requires_grad and not (
            real.is_leaf or isinstance(real, FakeTensor) or torch._is_functional_tensor(real)
        ):
            self.inputs.leaves[id(wrapper)] = wrap(fake)
            begin_history(wrapper, self.inputs.leaves[id(wrapper)])
            self.differentiable.add(id(wrapper))
        else:
            self.let_require_gradients(wrapper, real.requires_grad)
        self.recorder.histories.after_call(wrapper)

    def let_require_gradients(self, wrapper: torch.Tensor, wanted: bool) -> None:
        """Make the wrapper of an input a leaf at which gradients end, or none."""
        wrapper.requires_grad_(wanted)
        if wanted:
            self.differentiable.add(id(wrapper))

    def _append_input(self, wrapper: Any, fake: Any) -> None:
        self.inputs.append(wrapper, fake)

    def run(self) -> FunctionalRun:
        """Record the graph."""
        with self.recording():
            return run_functional(self.gm, self.arguments, self.attributes, self.recorder, self.regions)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, operators on functional tensors are recorded. An exception that is not ours is a bug of this package."""
        try:
            with self.mode, self.recorder, functionalisation(), symbolic_kernels(self.mode), self._dividing():
                yield
        except TYPED:
            raise
        except Exception as bug:  # the boundary of this pass
            raise InternalError("functionalise", f"{type(bug).__name__}: {bug}", self.recorder.line()) from bug

    def _dividing(self) -> AbstractContextManager[None]:
        """Numbers that the program computes are the tracer's; all others stand for those of C++ code."""
        shape_env = shape_env_of(self.mode)
        return nullcontext() if shape_env is None else shape_env.env.dividing_like_c()

    def describe(self, run: FunctionalRun) -> Contract:
        """Describe what was changed and what the outputs are. Adds copies to the graph where its outputs would alias."""
        self.recorder.meta = {}
        self._make_room_for_constants()
        n_before = len(self.recorded.inputs)
        with self.mode:
            reason = why_not_same_metadata(self.inputs)
            if reason is not None:
                raise UnsupportedGraph(reason)
            mutations = describe_mutations(self.inputs, self.outputs)
            expected_metadata, expected_wholes = self._expected_outputs(run)
            wholes = list(zip(run.wholes, expected_wholes, strict=True))
            described = describe_outputs(run.outputs, expected_metadata, self.inputs, self.outputs, wholes)
            results = self.gm.graph.output_node().args[0]
            outputs = with_unrecorded(with_views_of_several(described, results), results)
            numbers = output_numbers(self.inputs, outputs, self.outputs)
        assert len(self.recorded.inputs) == n_before
        changed = changed_inputs(self.inputs.wrappers, self.differentiable)
        detached = {index for index, requires_grad in changed if not requires_grad}
        if any(isinstance(output, ViewOfInput) and output.input in detached for output in outputs):
            raise UnsupportedGraph("an output is a view of an input that ceases to require gradients")
        versions = tuple((p, w._version) for p, w in sorted(self.outputs.wrappers.items()) if w._version)
        return Contract(tuple(self.recorded.inputs), mutations, outputs, numbers, changed, versions)

    def _make_room_for_constants(self) -> None:
        """Count in the constants that were met while recording. They stand behind the parameters among the graph's inputs."""
        n_constants = len(self.recorded.inputs) - len(self.inputs.wrappers)
        first = self.recorded.n_static - n_constants
        nodes = self.recorded.input_nodes[first : self.recorded.n_static]
        self.inputs.wrappers[first:first] = [object() for _ in nodes]  # no value of the user's graph is identical to it
        self.inputs.fakes[first:first] = [node.meta["val"] for node in nodes]

    def _expected_outputs(self, run: FunctionalRun) -> tuple[list[Any], Sequence[Any]]:
        """Tensors with the sizes, strides and offsets that eager gives the outputs and the run's `wholes`.

        Functional operators may choose other strides than in-place ones. Where they have, or may have, the graph runs once more on plain
        fake tensors.
        """
        self.inputs.expected_metadata = self.inputs.fakes
        if not run.mutated or self._why_not_as_eager(run) is None:
            return run.outputs, run.wholes
        fresh = [fake_like(self.mode, f) if isinstance(f, torch.Tensor) else f for f in self.inputs.fakes]
        for wrapper, f in zip(self.inputs.wrappers, fresh, strict=True):
            if isinstance(f, torch.Tensor) and isinstance(wrapper, torch.Tensor):
                if id(wrapper) in self.inputs.leaves:
                    begin_history(f, fake_like(self.mode, f))
                else:
                    f.requires_grad_(id(wrapper) in self.differentiable)
        of_wrapper = {id(w): f for w, f in zip(self.inputs.wrappers, fresh, strict=True)}
        self.inputs.expected_metadata = fresh
        arguments = [of_wrapper.get(id(a), a) for a in self.arguments]
        attributes = {name: of_wrapper.get(id(a), a) for name, a in self.attributes.items()}
        return run_as_eager(self.gm, arguments, attributes, run.layouts, self.mode)

    def _why_not_as_eager(self, run: FunctionalRun) -> str | None:
        """Why the outputs may have other sizes, strides or offsets than in eager."""
        for value, whole in zip(run.outputs, run.wholes, strict=True):
            if isinstance(value, torch.Tensor) and run.watched.moved is None:
                for tensor in (value, value._base, whole):
                    if tensor is not None:
                        self.outputs.value_of(tensor)
                        run.watched.look_at(tensor)
        return run.watched.moved

    def finish(self) -> fx.GraphModule:
        graph = self.recorded.graph
        graph.output(tuple(self.outputs.nodes))
        if any("mutates" in node.meta for node in graph.nodes):
            move_checks_forward(graph)
        hoist_asserts(graph)
        remove_dead_nodes(graph)
        return HooklessGraphModule(torch.nn.Module(), graph, class_name="AtenGraph")


@contextmanager
def symbolic_kernels(mode: FakeTensorMode) -> Iterator[None]:
    """Run Python's composite kernels where sizes are symbolic, because some of C++ read sizes as plain ints."""
    if mode.shape_env is None:
        yield
        return
    with symbolic_dispatch(), preserved_operators():
        yield


def mode_of(placeholders: Sequence[fx.Node]) -> FakeTensorMode | None:
    for node in placeholders:
        value = node.meta.get("example_value")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None
