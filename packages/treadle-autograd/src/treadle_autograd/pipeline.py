"""`aot`: from a torch-level graph to a callable around a compiled functional ATen graph."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from treadle_shapes import ShapesError
from treadle_shapes.torch import fake_like, fake_mode

from .contract import Contract
from .decomp import Decompositions
from .describe import GraphOutputs, Inputs, describe_mutations, describe_outputs, output_numbers, why_not_metadata
from .errors import InternalError, UnsupportedGraph
from .functional import (
    AtenRecorder,
    FunctionalRun,
    RecordedGraph,
    functionalisation,
    remove_dead_nodes,
    run_functional,
    run_plain,
    why_not_functional,
    why_not_refusal,
    wrap,
)
from .preserved_ops import preserved_ops
from .unbacked import hoist_asserts
from .wrapper import wrap_compiled

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]

# What fake tensors raise when a value is needed that only the data can tell.
_DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


@dataclass(frozen=True)
class InferenceTrace:
    """The functional ATen graph of a torch-level graph, and what surrounds it."""

    graph_module: fx.GraphModule
    contract: Contract
    input_values: tuple[Any, ...]


def aot(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    inference: bool = True,
    forward: Compiler,
    backward: Compiler | None = None,
    partition: Callable[..., Any] | None = None,
    decompositions: Decompositions | None = None,
) -> Callable[..., Sequence[Any]]:
    """Compile `gm` ahead of time with `forward`, which is given a functional ATen graph and its example inputs.

    `gm`: call_function/call_method nodes on torch functions, parameters by get_attr, output a flat tuple (docs/contracts.md §3).
    `example_inputs`: the real tensors and ints of the placeholders, in order.
    `decompositions`: ``{OpOverload: function}``, applied before recording; a function may answer ``NotImplemented``.

    Returns a callable of the placeholders' values that returns a sequence with one item per output. It has the attributes
    ``contract`` (`Contract` or None), ``aten_graph`` (GraphModule or None) and ``why_eager`` (None, or the reason for which the graph
    runs eagerly and `forward` was not called).

    ``inference=False``: the callable is differentiable. `forward` and `backward` compile the two halves into which `partition`
    divides the joint graph (`treadle_autograd.partition`; default `min_cut`): `backward` defaults to `forward`.

    Raises ValueError when a training argument is given for inference. Raises `InternalError` for bugs of this package; whatever
    the compilers raise passes through.
    """
    if not inference:
        return _aot_training(gm, example_inputs, forward, backward or forward, partition, decompositions or {})
    if backward is not None or partition is not None:
        given = "backward" if backward is not None else "partition"
        raise ValueError(f"aot: {given} was given, but inference=True has no backward pass: leave it out or pass inference=False")
    try:
        trace = trace_inference(gm, example_inputs, decompositions or {})
    except UnsupportedGraph as declined:
        return _eager(gm, str(declined))
    statics = trace.contract.static_tensors
    compiled = forward(trace.graph_module, [*statics, *example_inputs])
    run = wrap_compiled(compiled, trace.contract, trace.input_values, gm)
    return _annotated(run, trace.contract, trace.graph_module, None)


def _aot_training(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    forward: Compiler,
    backward: Compiler,
    partition: Callable[..., Any] | None,
    decompositions: Decompositions,
) -> Callable[..., Sequence[Any]]:
    from .joint import trace_joint
    from .partition import classify, min_cut, split
    from .training import TrainingProgram

    try:
        joint = trace_joint(gm, example_inputs, decompositions)
    except UnsupportedGraph as declined:
        return _eager(gm, str(declined))
    if joint is None:
        return aot(gm, example_inputs, forward=_without_gradients(forward), decompositions=decompositions)
    classes = classify(joint)
    halves = split(classes, (partition or min_cut)(classes))
    primals = [*joint.contract.static_tensors, *example_inputs]
    compiled = forward(halves.forward, primals)
    run = TrainingProgram(joint, halves, compiled, backward)
    return _annotated(wrap_compiled(run, joint.contract, joint.input_values, gm), joint.contract, halves.forward, None)


def _without_gradients(compiler: Compiler) -> Compiler:
    """A compiler whose graphs autograd does not see: nothing that they return is differentiable in eager."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        return torch.no_grad()(compiler(gm, example_inputs))

    return compile_graph


def _annotated(run: Any, contract: Contract | None, graph: fx.GraphModule | None, why_eager: str | None) -> Any:
    """`run` with the three attributes; a callable that takes no attributes (a bound method, say) is wrapped."""
    annotated = run
    if not hasattr(run, "__dict__") or isinstance(run, (types.MethodType, torch.nn.Module)):

        def annotated(*args: Any) -> Sequence[Any]:
            return run(*args)

    annotated.contract, annotated.aten_graph, annotated.why_eager = contract, graph, why_eager
    return annotated


def _eager(gm: fx.GraphModule, reason: str) -> Callable[..., Sequence[Any]]:
    def run(*args: Any) -> Sequence[Any]:
        return gm(*args)

    return _annotated(run, None, None, reason)


def trace_inference(
    gm: fx.GraphModule, example_inputs: Sequence[Any], decompositions: Decompositions
) -> InferenceTrace:
    """Functionalise and decompose `gm`. Raises `UnsupportedGraph` where it has no functional ATen form."""
    reason = why_not_functional(gm)
    if reason is not None:
        raise UnsupportedGraph(reason)
    with torch.inference_mode(False), torch.no_grad():
        job = FunctionalTrace(gm, example_inputs, decompositions)
        try:
            contract = job.describe(job.run())
        except ShapesError as error:
            raise UnsupportedGraph(
                f"a number must be known before the graph runs: {error}", job.recorder.line()
            ) from error
    return InferenceTrace(job.finish(), contract, tuple(job.inputs.fakes))


class FunctionalTrace:
    """One run of `trace_inference`: fakes, recorder, and the steps in order (`run`, `describe`, `finish`)."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any], decompositions: Decompositions) -> None:
        self.gm = gm
        self.placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.mode = _mode_of(self.placeholders) or fake_mode()
        self.recorded = RecordedGraph()
        self.recorder = AtenRecorder(self.recorded, self.mode, decompositions)
        self.inputs = Inputs([], [], [])
        self.attributes: dict[str, Any] = {}
        self.outputs = GraphOutputs(self.recorder)
        self._add_attributes()
        self.arguments = self._add_call_inputs(example_inputs)

    def _add_attributes(self) -> None:
        by_identity: dict[int, torch.Tensor] = {}
        for node in self.gm.graph.nodes:
            if node.op != "get_attr" or node.target in self.attributes:
                continue
            value = _attribute(self.gm, str(node.target))
            if isinstance(value, torch.Tensor):
                if id(value) not in by_identity:
                    fake = fake_like(self.mode, value)
                    graph_node = self.recorded.add_static(str(node.target).replace(".", "_"), value, fake)
                    by_identity[id(value)] = self.bind_input(graph_node, fake, value)
                value = by_identity[id(value)]
            self.attributes[str(node.target)] = value

    def _add_call_inputs(self, example_inputs: Sequence[Any]) -> list[Any]:
        arguments: list[Any] = []
        for index, (node, real) in enumerate(zip(self.placeholders, example_inputs, strict=True)):
            truth = node.meta.get("example_value", real)
            if not isinstance(truth, torch.Tensor):
                graph_node = self.recorded.add_call_input(node.name, index, truth)
                self.recorder.bind(truth, graph_node)
                self._append_input(truth, truth)
                arguments.append(truth)
                continue
            if truth.dim() != real.dim():
                raise UnsupportedGraph("the sizes or strides of an input are changed in place")
            fake = fake_like(self.mode, truth)
            arguments.append(self.bind_input(self.recorded.add_call_input(node.name, index, fake), fake, real))
        return arguments

    def bind_input(self, node: fx.Node, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """The functional tensor that stands for the input `real` while the graph is recorded."""
        self.recorder.bind(fake, node)
        with self.mode:
            wrapper = wrap(fake)
        self._append_input(wrapper, fake)
        self.outputs.forbid(fake)
        return wrapper

    def _append_input(self, wrapper: Any, fake: Any) -> None:
        self.inputs.wrappers.append(wrapper)
        self.inputs.fakes.append(fake)

    def run(self) -> FunctionalRun:
        """Record the graph."""
        with self.recording():
            return run_functional(self.gm, self.arguments, self.attributes, self.recorder)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, operators on functional tensors are recorded. What torch refuses comes out as UnsupportedGraph, a bug of ours as
        InternalError."""
        try:
            with self.mode, self.recorder, functionalisation(), symbolic_kernels(self.mode):
                yield
        except (UnsupportedGraph, ShapesError):
            raise
        except _DATA_DEPENDENT as needs_data:
            raise UnsupportedGraph(
                f"the values of a tensor are needed: {needs_data}", self.recorder.line()
            ) from needs_data
        except Exception as error:  # the boundary of this pass: named, located, never swallowed
            if why_not_refusal(error) is None:
                raise UnsupportedGraph(
                    f"torch has no functional form of an operator: {error}", self.recorder.line()
                ) from error
            detail = f"{type(error).__name__}: {error}"
            raise InternalError("functionalise", self.recorder.line(), None, detail) from error

    def describe(self, run: FunctionalRun) -> Contract:
        """Find out what was changed and what the outputs are, adding copies to the graph where outputs would alias."""
        self.recorder.meta = {}
        self._make_room_for_constants()
        n_before = len(self.recorded.inputs)
        with self.mode:
            reason = why_not_metadata(self.inputs)
            if reason is not None:
                raise UnsupportedGraph(reason)
            mutations = describe_mutations(self.inputs, self.outputs)
            expected_metadata = self._expected_outputs(run)
            outputs = describe_outputs(run.outputs, expected_metadata, self.inputs, self.outputs)
            numbers = output_numbers(self.inputs, outputs, self.outputs)
        assert len(self.recorded.inputs) == n_before
        return Contract(tuple(self.recorded.inputs), mutations, outputs, numbers)

    def _make_room_for_constants(self) -> None:
        """Constants met while recording stand among the graph's inputs, behind the parameters: count them in here too."""
        n_constants = len(self.recorded.inputs) - len(self.inputs.wrappers)
        first = self.recorded.n_static - n_constants
        nodes = self.recorded.input_nodes[first : self.recorded.n_static]
        self.inputs.wrappers[first:first] = [object() for _ in nodes]  # nothing that the user's graph could name
        self.inputs.fakes[first:first] = [node.meta["val"] for node in nodes]

    def _expected_outputs(self, run: FunctionalRun) -> list[Any]:
        """Tensors with the sizes, strides and offsets that eager gives the outputs: where something is changed in place, functional
        operators may choose other strides, and the graph is run once more as it stands on fresh fake tensors."""
        self.inputs.expected_metadata = self.inputs.fakes
        if not run.mutated:
            return run.outputs
        fresh = [fake_like(self.mode, f) if isinstance(f, torch.Tensor) else f for f in self.inputs.fakes]
        of_wrapper = {id(w): f for w, f in zip(self.inputs.wrappers, fresh, strict=True)}
        self.inputs.expected_metadata = fresh
        arguments = [of_wrapper.get(id(a), a) for a in self.arguments]
        attributes = {name: of_wrapper.get(id(a), a) for name, a in self.attributes.items()}
        return run_plain(self.gm, arguments, attributes, run.layouts, self.mode)

    def finish(self) -> fx.GraphModule:
        graph = self.recorded.graph
        graph.output(tuple(self.outputs.nodes))
        hoist_asserts(graph)
        remove_dead_nodes(graph)
        return fx.GraphModule(torch.nn.Module(), graph, class_name="AtenGraph")


@contextmanager
def symbolic_kernels(mode: FakeTensorMode) -> Iterator[None]:
    """Some C++ composite kernels read sizes as plain ints; where sizes are symbolic, their Python twins are used."""
    if mode.shape_env is None:
        yield
        return
    from treadle_shapes.torch import symbolic_dispatch

    with symbolic_dispatch(), preserved_ops():
        yield


def _mode_of(placeholders: Sequence[fx.Node]) -> FakeTensorMode | None:
    for node in placeholders:
        value = node.meta.get("example_value")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def _attribute(gm: fx.GraphModule, target: str) -> Any:
    value: Any = gm
    for name in target.split("."):
        value = getattr(value, name)
    return value
