"""`aot`: from a torch-level graph to a callable around compiled functional ATen graphs."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes.torch import operator as operator_record

from .contract import Contract, OutputDescription, Relation, ViewOfInput
from .decompositions import Decompositions
from .describe import has_node
from .errors import UnsupportedGraph
from .functional_trace import trace_inference
from .unrecorded import run_unrecorded
from .wrapper import running_in_eager, wrap_compiled

if TYPE_CHECKING:
    from .partition import FindParts, Partition, PartitionReport

Compiler = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]
Late = Callable[[Callable[[], Any]], Any]


def aot(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    inference: bool = True,
    forward: Compiler,
    backward: Compiler | None = None,
    partition: Partition | None = None,
    decompositions: Decompositions | None = None,
    late: Late | None = None,
    again: FindParts | None = None,
) -> Callable[..., Sequence[Any]]:
    """Compile `gm` ahead of time: `forward` gets a functional ATen graph and its example inputs, and returns a callable.

    `gm`: call_function/call_method nodes on torch functions, parameters by get_attr, output a flat tuple (docs/contracts.md §3).
    `example_inputs`: the real tensors and ints of the placeholders, in order.
    `decompositions`: ``{OpOverload: function}``, applied before recording. Where a function returns ``NotImplemented``, the call stays.
    A mapping may have an attribute ``identity``, a text from which its content follows; no item is read then to look for kept programs.

    Returns a callable of the placeholders' values that returns a sequence with one item per output. It has the attributes
    ``contract`` (`Contract` or None), ``aten_graph`` (GraphModule or None) and ``why_eager`` (None, or the reason why the graph
    runs eagerly; `forward` was not called then), and ``partition_report``: None, or for a differentiable callable a function that
    returns the `PartitionReport` of what is saved for backward and what is computed again.

    ``inference=False`` makes the callable differentiable. The joint graph of the program and its gradients is divided by `partition`
    (`min_cut`, the default, `save_everything` or `with_budget(b)`); `forward` compiles the forward half at once, `backward` (default:
    `forward`) the backward half when it first runs. ``aten_graph`` is the forward half; None where an earlier process has traced the graph
    (`keep_programs`).

    `again(graph, others)` finds parts of the joint graph's forward half, sets of nodes, that `forward` keeps out of memory where only the
    part itself and its results read them: backward then computes them again. `others` are the nodes that are not in the forward half. A
    part is saved all the same where computing it again would show.

    `late(build)` is called, in a backward pass, to run `build`, which traces and compiles a program for gradients that are differentiable
    themselves; it returns the result of `build`, or None, and then the traced graph runs in eager. Default: `build()`.

    Raises ValueError when `backward`, `partition` or `again` is given for inference. Raises `InternalError` for a bug of this package.
    Exceptions of the compilers pass through.
    """
    decompositions = {} if decompositions is None else decompositions
    if not inference:
        late = late or (lambda build: build())
        return _aot_training(gm, example_inputs, forward, backward or forward, partition, decompositions, late, again)
    given = {"backward": backward, "partition": partition, "again": again}
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None:
        raise ValueError(f"aot: {name} was given, but a graph for inference has no backward pass: pass inference=False")
    return _aot_inference(gm, example_inputs, forward, decompositions, has_history=False)


def _aot_inference(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    forward: Compiler,
    decompositions: Decompositions,
    *,
    has_history: bool,
) -> Callable[..., Sequence[Any]]:
    """has_history: outputs that are views of an input have the history that autograd gives them where they are rebuilt; else eager's have
    none."""
    try:
        trace = trace_inference(gm, example_inputs, decompositions)
    except UnsupportedGraph as declined:
        return _eager(gm, str(declined))
    inputs = [*trace.contract.static_tensors, *example_inputs]
    contract = trace.contract
    is_seen = torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in inputs)
    if is_seen and not has_history:
        unrecorded = _unrecorded_views(gm, contract.outputs, inputs)
        if unrecorded is None:
            return _eager(gm, "an output is a view, made with gradients off, of a tensor that requires gradients")
        contract = replace(contract, outputs=unrecorded)
    if _needs_grad_mode(trace.graph_module.graph):
        forward = _unrecorded(forward)
    elif is_seen:
        forward = _without_gradients(forward)
    compiled = forward(trace.graph_module, inputs)
    run = wrap_compiled(compiled, contract, trace.input_values, running_in_eager(gm))
    return _annotated(run, contract, trace.graph_module, None)


def _unrecorded_views(
    gm: fx.GraphModule, outputs: Sequence[OutputDescription], inputs: Sequence[Any]
) -> tuple[OutputDescription, ...] | None:
    """The outputs, with those views of inputs that autograd would record where they are rebuilt as made with gradients off.

    None if the program may have made one with gradients on: a node's `example_value` tells.
    """
    found = list(outputs)
    nodes = gm.graph.output_node().args[0]
    assert isinstance(nodes, (tuple, list))
    for place, (output, node) in enumerate(zip(outputs, nodes, strict=True)):
        if not isinstance(output, ViewOfInput) or not _would_be_recorded(output, inputs):
            continue
        value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.Tensor) or has_node(value):
            return None
        found[place] = replace(output, relation=Relation.UNRECORDED)
    return tuple(found)


def _would_be_recorded(output: ViewOfInput, inputs: Sequence[Any]) -> bool:
    """Whether autograd would record the view where it is rebuilt, since the input requires gradients."""
    return output.detached is None and output.relation is Relation.VIEW and bool(inputs[output.input].requires_grad)


def _aot_training(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    forward: Compiler,
    backward: Compiler,
    partition: Partition | None,
    decompositions: Decompositions,
    late: Late,
    again: FindParts | None,
) -> Callable[..., Sequence[Any]]:
    # Imported here: programs that do not train need none of it, and it takes 4 ms of every start.
    from .ambient import Ambient
    from .early_leaves import early_leaves, without_first_calls
    from .gradient_programs import Recipe
    from .hooked_inputs import hooked_inputs
    from .partition import Halves, min_cut, report
    from .programs import training_program
    from .rerun import run_with_lines

    leaves = early_leaves(gm, example_inputs)
    if leaves:
        given = [v.detach().requires_grad_() if k in leaves else v for k, v in enumerate(example_inputs)]
        rest = without_first_calls(gm, leaves)
        built = _aot_training(rest, given, forward, backward, partition, decompositions, late, again)
        return _beginning_with(leaves, built)
    recipe = Recipe(decompositions, partition or min_cut, backward, late, Ambient.current(), again)
    try:
        program = training_program(gm, example_inputs, forward, recipe)
    except UnsupportedGraph as declined:
        return _eager(gm, str(declined))
    if program is None:  # nothing to differentiate
        return _aot_inference(gm, example_inputs, forward, decompositions, has_history=True)
    contract = program.joint.contract
    wrapped = wrap_compiled(program, program.contract, program.joint.input_values, running_in_eager(gm))

    def with_lines(*args: Any) -> Sequence[Any]:
        return run_with_lines(gm, args)

    in_anomaly_mode = running_in_eager(gm, with_lines) if contract.mutations else with_lines
    are_hooked = hooked_inputs(program)
    with_hooks = running_in_eager(gm) if contract.mutations else gm.forward
    second_runs = recipe.second_runs
    may_leave = not contract.mutations  # else what eager raises comes after a write, perhaps

    def run(*args: Any) -> Sequence[Any]:
        # Anomaly mode is there to find one operation of the user's. The compiled graph would be one for all of them.
        if torch.is_anomaly_enabled():
            return in_anomaly_mode(*args)
        if may_leave and second_runs.begins_in_eager():
            return gm.forward(*args)
        if are_hooked is not None and are_hooked(args):
            return with_hooks(*args)
        return wrapped(*args)

    halves = program.halves
    graph = halves.forward if isinstance(halves, Halves) else None  # one that has been found has no graph yet
    return _annotated(run, contract, graph, None, lambda: report(halves.whole()))


def _beginning_with(leaves: Sequence[int], run: Any) -> Callable[..., Sequence[Any]]:
    """`run`, after the inputs at these positions have been told to require gradients."""

    def mark_and_run(*args: Any) -> Sequence[Any]:
        for k in leaves:
            args[k].requires_grad_()
        return run(*args)

    return _annotated(mark_and_run, run.contract, run.aten_graph, run.why_eager, run.partition_report)


def _without_gradients(compiler: Compiler) -> Compiler:
    """A compiler whose graphs autograd does not see: nothing that they return is differentiable in eager. Calls with
    memory given (`out=`) refuse arguments that require gradients where autograd sees them."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        return torch.no_grad()(compiler(gm, example_inputs))

    return compile_graph


def _needs_grad_mode(graph: fx.Graph) -> bool:
    """Whether kernels of a graph that holds its own gradients give what their backward pass needs in grad mode only."""
    records = (operator_record(node.target) for node in graph.nodes if node.op == "call_function")
    return any(record is not None and record.needs_grad_mode for record in records)


def _unrecorded(compiler: Compiler) -> Compiler:
    """A compiler whose graphs run in grad mode, and record nothing."""

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        compiled = compiler(gm, example_inputs)
        return lambda *args: run_unrecorded(compiled, args)

    return compile_graph


def _annotated(
    run: Any,
    contract: Contract | None,
    graph: fx.GraphModule | None,
    why_eager: str | None,
    partition_report: Callable[[], PartitionReport] | None = None,
) -> Any:
    """`run` with the attributes of `aot`'s result. A callable that takes no attributes, such as a bound method, is wrapped."""
    annotated = run
    if not hasattr(run, "__dict__") or isinstance(run, (types.MethodType, torch.nn.Module)):

        def annotated(*args: Any) -> Sequence[Any]:
            return run(*args)

    annotated.contract, annotated.aten_graph, annotated.why_eager = contract, graph, why_eager
    annotated.partition_report = partition_report
    annotated.raises_before_writing = why_eager is None
    return annotated


def _eager(gm: fx.GraphModule, reason: str) -> Callable[..., Sequence[Any]]:
    def run(*args: Any) -> Sequence[Any]:
        return gm.forward(*args)

    return _annotated(run, None, None, reason)
