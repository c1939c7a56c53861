"""Trace the repeated parts of a program once: every further one is a copy of the recorded nodes, forward and backward.

    %y1 = layer(%x, %w1)                    the nodes of one layer and of its gradients are recorded in a graph of their own, and copied to
    %y2 = layer(%y1, %w2)          ==>      the trace's graph for (%x, %w1) and for (%y1, %w2); autograd meets one function for each layer,
                                            whose backward appends the copies of the gradients' nodes

What a layer's trace depends on stands in the key under which it is kept: the structure of the region, and the metadata of its arguments.
The gradients of an argument that a region uses several times are summed up inside it. Where it has gradients from elsewhere too, they may
be summed up in another order than without sharing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.types import py_sym_types
from torch.utils._python_dispatch import _len_torch_dispatch_stack, _pop_mode, _push_mode

from treadle_shapes.torch import HooklessGraphModule, expr_of, fake_like, fake_view

from .asserts import is_assert
from .contract import FreshOutput
from .describe import why_not_same_metadata
from .errors import UnsupportedGraph
from .functional_trace import FunctionalTrace
from .functionalise import FunctionalRun, is_changed, wrap
from .graph_nodes import append_call
from .histories import functions_behind
from .recorder import AtenRecorder, storage_key
from .repeats import Region, find_regions
from .watched_layouts import WatchedLayouts

#: The entries of a node's `meta` that tell of the program's line, and not of what the node computes.
_OF_THE_CALL = ("stack_trace", "checkpoint")


class RegionDiffers(UnsupportedGraph):
    """A backward pass of a shared region cannot be recorded apart from the program: the program must be traced without sharing."""


class Group(enum.Enum):
    """The values of a region that stand in the program's trace."""

    ARGUMENT = enum.auto()
    RESULT = enum.auto()
    TANGENT = enum.auto()
    GRADIENT = enum.auto()


class Place(NamedTuple):
    """The `number`-th value of a group."""

    group: Group
    number: int


class Origin(enum.Enum):
    """What a gradient of a region is to the values that are there before it."""

    SAME = "the same tensor as one of them"
    VIEW = "a view into the memory of one of them"
    NEW = "a tensor of its own"


@dataclass(frozen=True)
class Gradient:
    """How a gradient of a region is made into a value of the program's trace.

    node: its node in the region's graph. of: the place of the value that it is the same as, or a view of; its own place if it is new.
    """

    node: fx.Node
    origin: Origin
    of: Place


@dataclass
class Gradients:
    """One backward pass of a region: its nodes in order, tangents apart, and the gradients of the arguments that have one."""

    tangents: tuple[fx.Node | None, ...]
    nodes: tuple[fx.Node, ...]
    found: tuple[Gradient | None, ...]


@dataclass
class RegionTrace:
    """The trace of a region as a program of its own.

    nodes: the forward part. results: the nodes of the results. differentiable: for each result, whether it requires gradients.
    layouts: of the calls of the region, in order. mutated, moved: whether it changes anything in place, and why what it changes may have
    another layout in eager. saved: positions of arguments and of results (behind the arguments) that backward reads.
    """

    job: Any
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    results: tuple[fx.Node, ...]
    wrappers: tuple[torch.Tensor, ...]
    layouts: tuple[Any, ...]
    mutated: bool
    moved: str | None
    saved: tuple[int, ...] = ()
    backward: dict[Hashable, Gradients] = field(default_factory=dict)

    def gradients_for(self, tangents: Sequence[torch.Tensor | None]) -> Gradients:
        """The gradients for tangents with the metadata of these fake tensors; None: not defined.

        Raises UnsupportedGraph where there is no graph of them.
        """
        key = tuple(None if tangent is None else tensor_key(tangent) for tangent in tangents)
        if key not in self.backward:
            with outside_trace():
                self.backward[key] = _trace_backward(self, tangents)
        return self.backward[key]


class SharedRegions:
    """The regions of a graph that is being traced, and what has been traced of them.

    trace: makes the trace of a region's graph, with these example inputs.
    """

    def __init__(self, graph: fx.Graph, recorder: AtenRecorder, trace: Callable[..., Any]) -> None:
        self.recorder = recorder
        self.layouts: dict[fx.Node, Any] = {}
        self.mutated = False
        self.watched = WatchedLayouts()
        self.by_first_node: dict[fx.Node, Region] = {region.nodes[0]: region for region in find_regions(graph)}
        self._trace = trace
        self._traces: dict[Hashable, RegionTrace | str] = {}

    def run(self, region: Region, values: Sequence[Any]) -> dict[fx.Node, Any] | None:
        """Append copies of the region's nodes, with `values` for its arguments. Returns the values of its calls (None where nothing outside
        uses them), or None where the region must be traced as the rest of the program is."""
        if why_not_now(values) is not None:
            return None
        recorder = self.recorder
        recorder.values_before_no_grad.clear()
        recorder.meta = {key: region.nodes[0].meta.get(key) for key in _OF_THE_CALL[:1]}
        nodes = [recorder.node_of_value(value) for value in values]
        self.watched.after_call(self.watched.before_call(values, {}), None)
        key = region.structure, tuple([self._key(value, node) for value, node in zip(values, nodes, strict=True)])
        if key not in self._traces:
            self._traces[key] = trace_region(region, values, nodes, self._trace)
        found = self._traces[key]
        if isinstance(found, str):
            return None
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        outputs = _CopiedRegion.apply(_Copy(found, region, nodes, recorder), *tensors)  # type: ignore[no-untyped-call]
        recorder.histories.after_call(outputs)
        self.layouts.update(zip(region.nodes, found.layouts, strict=True))
        self.mutated = self.mutated or found.mutated
        self.watched.moved = self.watched.moved or found.moved
        results: dict[fx.Node, Any] = dict.fromkeys(region.nodes)
        results.update({region.nodes[k]: output for k, output in zip(region.results, outputs, strict=True)})
        return results

    def _key(self, value: Any, node: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            return value.requires_grad, tensor_key(node.meta["val"])
        return type(value), expr_of(value) if isinstance(value, py_sym_types) else value


def why_not_now(values: Sequence[Any]) -> str | None:
    """Why the state of the trace, or the arguments at hand, do not let a region be shared."""
    if not torch.is_grad_enabled():
        return "gradients are off"
    if torch._C._is_any_autocast_enabled():
        return "autocast keeps casts of weights"
    if not any(isinstance(value, torch.Tensor) for value in values):
        return "no argument is a tensor"
    for value in values:
        if isinstance(value, torch.Tensor):
            if not torch._is_functional_tensor(value):
                return "an argument is no tensor of the trace"
        elif type(value) not in (int, float, bool, *py_sym_types):
            return "an argument is neither a tensor nor a number"
    return None


def tensor_key(fake: torch.Tensor) -> tuple[Any, ...]:
    """What a trace can tell of a tensor, but for whether it requires gradients."""
    dims = tuple([tuple([n if type(n) is int else expr_of(n) for n in ns]) for ns in (fake.shape, fake.stride())])
    # The dispatch keys tell conjugated, negated and other special tensors.
    return fake.dtype, fake.device, torch._C._dispatch_keys(fake).raw_repr(), dims


@contextmanager
def outside_trace() -> Iterator[None]:
    """Inside, another trace can be recorded while one is."""
    modes = [_pop_mode() for _ in range(_len_torch_dispatch_stack())]
    torch._disable_functionalization()
    try:
        with torch.enable_grad():
            yield
    finally:
        torch._enable_functionalization(reapply_views=True)
        for mode in reversed(modes):
            _push_mode(mode)


# -- one region's trace -----------------------------------------------------------------------------------------------


def trace_region(
    region: Region, values: Sequence[Any], nodes: Sequence[Any], trace: Callable[..., Any]
) -> RegionTrace | str:
    """The trace of the region for such arguments, or why it cannot be shared. nodes: what computes `values` in the program's trace."""
    gm = _region_graph(
        region, [n.meta["val"] if isinstance(v, torch.Tensor) else v for v, n in zip(values, nodes, strict=True)]
    )
    try:
        with outside_trace():
            job = trace(gm, values)
            job.recorder.for_training = True
            run = job.run()
            job.recorder.meta = {}
            contract = job.describe_values(run.outputs)
    except UnsupportedGraph as declined:
        return str(declined)
    reason = _why_not_apart(job, run, contract)
    if reason is not None:
        return reason
    recorded = [node for node in job.recorded.graph.nodes if node.op != "placeholder"]
    results = tuple(job.outputs.nodes[output.position] for output in contract.outputs)
    wrappers = tuple(run.outputs)
    calls = [node for node in gm.graph.nodes if node.op in ("call_function", "call_method")]
    layouts = tuple(run.layouts.get(node) for node in calls)
    inputs, moved = tuple(job.recorded.input_nodes), run.watched.moved
    made = RegionTrace(job, inputs, tuple(recorded), results, wrappers, layouts, run.mutated, moved)
    usual = [node.meta["val"] if w.requires_grad else None for node, w in zip(results, wrappers, strict=True)]
    try:
        made.saved = _saved(made, made.gradients_for(usual))
    except UnsupportedGraph as declined:
        return str(declined)
    return made


def _saved(region: RegionTrace, backward: Gradients) -> tuple[int, ...]:
    """The positions of the arguments, and behind them of the results, whose memory backward reads."""
    forward = {*region.inputs, *region.nodes}
    read = [node for late in backward.nodes for node in late.all_input_nodes if node in forward]
    read += [gradient.node for gradient in backward.found if gradient is not None and gradient.node in forward]
    memory = {storage_key(node.meta["val"]) for node in read if isinstance(node.meta["val"], torch.Tensor)}
    given = [node for node in (*region.inputs, *region.results) if isinstance(node.meta["val"], torch.Tensor)]
    return tuple(k for k, node in enumerate(given) if storage_key(node.meta["val"]) in memory)


def _region_graph(region: Region, examples: Sequence[Any]) -> fx.GraphModule:
    """The region as a program. `meta["call"]` of a node is its place in the region."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for k, (node, example) in enumerate(zip(region.arguments, examples, strict=True)):
        copies[node] = graph.placeholder(f"argument_{k}")
        copies[node].meta["example_value"] = example
    for k, node in enumerate(region.nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta["call"] = k
    graph.output(tuple(copies[region.nodes[k]] for k in region.results))
    return HooklessGraphModule(torch.nn.Module(), graph)


def _why_not_apart(job: FunctionalTrace, run: FunctionalRun, contract: Any) -> str | None:
    """Why a copy of the region's nodes is not all that the region does to the program's trace."""
    recorder = job.recorder
    if len(job.recorded.inputs) != len(job.placeholders):
        return "it has constants of its own"
    if recorder.custom_calls or recorder.histories.lost is not None:
        return "autograd sees something else than its operators"
    if any(is_assert(node) for node in job.recorded.graph.nodes):
        return "it checks numbers"
    reason = why_not_same_metadata(job.inputs)
    if reason is not None:
        return reason
    if any(is_changed(wrapper) or wrapper._version for _, wrapper, _ in job.inputs.tensors()):
        return "it writes to its arguments"
    if contract.numbers or any(not isinstance(output, FreshOutput) for output in contract.outputs):
        return "a result shares memory with something else"
    if any(output._is_view() for output in run.outputs):
        return "a result is a view"
    nodes = [job.outputs.nodes[output.position] for output in contract.outputs]
    if nodes != [job.outputs.origins[output.position] for output in contract.outputs]:
        return "a result needed a copy"
    return _why_not_connected(job, run)


def _why_not_connected(job: FunctionalTrace, run: FunctionalRun) -> str | None:
    """Why a function of all the arguments, with all the results, tells another story of what is computed from what."""
    leaves = {id(wrapper) for _, wrapper, _ in job.inputs.tensors() if wrapper.requires_grad}
    results = [output for output in run.outputs if output.requires_grad]
    if not results:
        return "it has no gradients"
    for output in results:
        behind = {id(getattr(function, "variable", None)) for function in functions_behind([output.grad_fn])}
        if not leaves <= behind:
            return "a result is computed from some of the arguments only"
    return None


def _trace_backward(region: RegionTrace, tangents: Sequence[torch.Tensor | None]) -> Gradients:
    """Record the gradients of the region from such tangents, fake tensors, in the region's graph. None: that gradient is not defined."""
    job = region.job
    graph: fx.Graph = job.recorded.graph
    last = list(graph.nodes)[-1]
    wrapped: list[torch.Tensor] = []
    placeholders: list[fx.Node | None] = []
    for k, tangent in enumerate(tangents):
        placeholders.append(None)
        if tangent is not None:
            fake = fake_like(job.mode, tangent)
            placeholders[k] = node = graph.placeholder(f"tangent_{len(region.backward)}_{k}")
            node.meta["val"] = fake
            job.recorder.bind(fake, node)
            with job.mode:
                wrapped.append(wrap(fake))
    job.recorder.meta = {"of_backward": True}
    outputs = [output for output, tangent in zip(region.wrappers, tangents, strict=True) if tangent is not None]
    inputs = [wrapper for _, wrapper, _ in job.inputs.tensors() if wrapper.requires_grad]
    found = job.gradients_of(outputs, inputs, wrapped, retain_graph=True)
    with job.mode:
        fakes = [None if gradient is None else job.outputs.value_of(gradient) for gradient in found]
    nodes = [None if fake is None else job.recorder.node_of(fake) for fake in fakes]
    recorded, node = [], last.next
    while node.op != "root":
        if node.op != "placeholder":
            recorded.append(node)
        node = node.next
    return Gradients(tuple(placeholders), tuple(recorded), tuple(_gradients(region, placeholders, nodes)))


def _gradients(
    region: RegionTrace, tangents: Sequence[fx.Node | None], nodes: Sequence[fx.Node | None]
) -> Iterator[Gradient | None]:
    """Tell what each gradient is to the tangents, the arguments, the results and the gradients before it."""
    known = {node: Place(Group.TANGENT, k) for k, node in enumerate(tangents) if node is not None}
    memory: dict[int, tuple[Place, torch.dtype]] = {}
    for group, values in ((Group.ARGUMENT, region.inputs), (Group.RESULT, region.results), (Group.TANGENT, tangents)):
        for k, node in enumerate(values):
            if node is not None and isinstance(node.meta["val"], torch.Tensor):
                memory[storage_key(node.meta["val"])] = Place(group, k), node.meta["val"].dtype
    for k, node in enumerate(nodes):
        if node is None:
            yield None
            continue
        fake = node.meta["val"]
        if node in known:
            yield Gradient(node, Origin.SAME, known[node])
            continue
        own = known[node] = Place(Group.GRADIENT, k)
        if storage_key(fake) not in memory:
            memory[storage_key(fake)] = own, fake.dtype
            yield Gradient(node, Origin.NEW, own)
            continue
        place, dtype = memory[storage_key(fake)]
        if dtype != fake.dtype or fake.is_conj() or fake.is_neg():
            raise RegionDiffers("a gradient is a view of something with another dtype")
        yield Gradient(node, Origin.VIEW, place)


# -- copies -----------------------------------------------------------------------------------------------------------


class _Copy:
    """One region in the program's graph."""

    def __init__(self, trace: RegionTrace, region: Region, arguments: Sequence[Any], recorder: AtenRecorder) -> None:
        self.trace = trace
        self.recorder = recorder
        self._metas = [{key: n.meta[key] for key in _OF_THE_CALL if n.meta.get(key) is not None} for n in region.nodes]
        self._copies: dict[fx.Node, Any] = dict(zip(trace.inputs, arguments, strict=True))
        self._fakes: dict[Place, torch.Tensor] = {}
        for k, node in enumerate(arguments):
            if isinstance(node, fx.Node) and isinstance(node.meta["val"], torch.Tensor):
                self._fakes[Place(Group.ARGUMENT, k)] = node.meta["val"]

    def forward(self) -> list[torch.Tensor]:
        """Append the forward part. Returns functional tensors for the results."""
        self._append(self.trace.nodes)
        outputs: list[torch.Tensor] = []
        for k, (node, original) in enumerate(zip(self.trace.results, self.trace.wrappers, strict=True)):
            outputs.append(self._value(node, Place(Group.RESULT, k)))
            if original._version:
                torch._C._autograd._unsafe_set_version_counter((outputs[-1],), (original._version,))
        return outputs

    def backward(self, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Append the backward part for these tangents. Returns the gradients of the arguments that require some, in order."""
        nodes = [None if tangent is None else self.recorder.node_of_value(tangent) for tangent in tangents]
        fakes = [None if node is None else node.meta["val"] for node in nodes]
        try:
            found = self.trace.gradients_for(fakes)
        except UnsupportedGraph as declined:
            raise RegionDiffers(str(declined)) from declined
        for k, (placeholder, node) in enumerate(zip(found.tangents, nodes, strict=True)):
            if placeholder is not None:
                self._copies[placeholder] = node
                self._fakes[Place(Group.TANGENT, k)] = fakes[k]  # type: ignore[assignment]
        self._append(found.nodes)
        gradients: list[torch.Tensor | None] = []
        for k, gradient in enumerate(found.found):
            if gradient is None:
                gradients.append(None)
            elif gradient.origin is Origin.SAME:
                before = tangents if gradient.of.group is Group.TANGENT else gradients
                gradients.append(before[gradient.of.number])
            else:
                gradients.append(self._value(gradient.node, Place(Group.GRADIENT, k), gradient))
        return gradients

    def _append(self, nodes: Sequence[fx.Node]) -> None:
        graph, copies = self.recorder.recorded.graph, self._copies
        for node in nodes:
            if isinstance(node.meta["val"], py_sym_types):
                continue
            kwargs = fx.map_arg(node.kwargs, self._copy_of) if node.kwargs else {}
            made = append_call(graph, node.target, fx.map_arg(node.args, self._copy_of), kwargs)  # type: ignore[arg-type]
            made.meta.update(node.meta)
            call = made.meta.pop("call", None)
            if call is not None:
                for key in _OF_THE_CALL:
                    made.meta.pop(key, None)
                made.meta.update(self._metas[call])
            copies[node] = made

    def _copy_of(self, node: fx.Node) -> Any:
        """The copy of a node. That of a number may be among the nodes of another backward pass, which need not be copied."""
        if node not in self._copies and isinstance(node.meta["val"], py_sym_types):
            self._copies[node] = self.recorder.symbolic.node_for(node.meta["val"])
        return self._copies[node]

    def _value(self, node: fx.Node, place: Place, gradient: Gradient | None = None) -> torch.Tensor:
        """A functional tensor for the copy of `node`, whose memory is apart from the region's other traces."""
        value, made = node.meta["val"], self._copies[node]
        mode = self.recorder.mode
        with torch._C._ExcludeDispatchKeyGuard(_FUNCTIONALISE):
            if gradient is None or gradient.origin is Origin.NEW:
                fake = fake_like(mode, value)
            else:
                fake = fake_view(mode, self._fakes[gradient.of], value)
            self._fakes[place] = fake
            made.meta["val"] = fake
            self.recorder.bind(fake, made)
            return wrap(fake)


_FUNCTIONALISE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


class _CopiedRegion(torch.autograd.Function):
    """A copied region in autograd's graph of the trace."""

    @staticmethod
    def forward(ctx: Any, copy: _Copy, *tensors: torch.Tensor) -> Any:
        """Append the forward part."""
        outputs = copy.forward()
        ctx.copy = copy
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[o for o, w in zip(outputs, copy.trace.wrappers, strict=True) if not w.requires_grad]
        )
        ctx.save_for_backward(*[(*tensors, *outputs)[k] for k in copy.trace.saved])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        """Append the backward part."""
        ctx.saved_tensors  # noqa: B018  raises where one of them has been changed in place since
        gradients = iter(ctx.copy.backward(tangents))
        return None, *[next(gradients) if wants else None for wants in ctx.needs_input_grad[1:]]
